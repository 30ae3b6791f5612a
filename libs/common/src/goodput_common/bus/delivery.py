"""What becomes of one delivery: the rules that both buses share.

A handler that returns is done. `Retry` asks for a second delivery after a delay of its choice, any other exception for one
after a delay that doubles from 0.25 s to 30 s. `Reject`, or the last allowed delivery failing, ends in goodput.rejected.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from goodput_common.bus.errors import Reject, Retry
from goodput_common.bus.ports import Handler, Message
from goodput_common.runtime.logs import get_logger

FIRST_RETRY_S = 0.25
RETRY_S_MAX = 30.0
ASKED_RETRY_S_MAX = 3600.0


@dataclass(frozen=True, slots=True)
class Done:
    """Acknowledge."""


@dataclass(frozen=True, slots=True)
class Later:
    """Deliver again after `delay_s`."""

    delay_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Never:
    """Keep under goodput.rejected, then acknowledge."""

    reason: str


Outcome = Done | Later | Never


def retry_delay_s(deliveries: int) -> float:
    """Delay before the next delivery after the `deliveries`-th failed."""
    return float(min(FIRST_RETRY_S * 2.0 ** min(deliveries - 1, 16), RETRY_S_MAX))


def too_often(deliveries: int, max_deliveries: int) -> Never | None:
    """A message delivered more often than allowed has ended no handler: those processes died of it or were cut off."""
    if deliveries <= max_deliveries:
        return None
    return Never(f"delivered {deliveries} times (limit {max_deliveries}) without an outcome; its handlers may have crashed")


async def run_handler(handler: Handler, message: Message, max_deliveries: int) -> Outcome:
    """Run the handler and judge. Only a cancellation of the caller's own task gets out."""
    log = get_logger(__name__)
    try:
        await handler(message)
    except Reject as error:
        return Never(error.reason)
    except Retry as error:
        outcome = Later(min(max(error.delay_s, 0.0), ASKED_RETRY_S_MAX), str(error))
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        outcome = Later(retry_delay_s(message.deliveries), f"CancelledError: {error}")
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        outcome = Later(retry_delay_s(message.deliveries), why)
        if message.deliveries == 1:
            log.warning(
                "handler failed, the message will be delivered again",
                subject=message.subject,
                id=message.id,
                delay_s=outcome.delay_s,
                exc_info=error,
            )
    else:
        return Done()
    if message.deliveries >= max_deliveries:
        return Never(f"failed at delivery {message.deliveries} of {max_deliveries}: {outcome.why}")
    return outcome
