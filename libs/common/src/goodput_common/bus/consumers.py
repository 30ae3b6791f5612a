"""Durable consumers: make or verify one, and go on after one was lost."""

from __future__ import annotations

import nats.js.errors
from nats.aio.client import Client
from nats.js import api

from goodput_common.bus.errors import ProvisioningConflict
from goodput_common.bus.ports import Consumer

API_TIMEOUT_S = 3.0
ACK_PENDING_MIN = 1000
STREAM_NOT_FOUND = 10059


class JetStreamLost(Exception):
    """The stream or the durable cannot be used now; binding again may help."""

    def __init__(self, text: str, *, stream_missing: bool = False) -> None:
        super().__init__(text)
        self.stream_missing = stream_missing


async def bind_consumer(client: Client, consumer: Consumer, next_sequence: int | None) -> int | None:
    """Make sure that the durable exists as wanted; returns the sequence at which a consumer of new messages goes on.

    A durable that exists keeps its position. One that is gone is made again: from the start of the stream, or, with
    `deliver_new_only`, from `next_sequence` (None: from now). Raises ProvisioningConflict, JetStreamLost.
    """
    js = client.jetstream(timeout=API_TIMEOUT_S)
    try:
        info = await js.consumer_info(consumer.stream, consumer.durable)
    except nats.js.errors.NotFoundError as error:
        if error.err_code == STREAM_NOT_FOUND:
            raise JetStreamLost(f"stream {consumer.stream} does not exist", stream_missing=True) from error
    except nats.js.errors.APIError as error:
        raise JetStreamLost(_text(error)) from error
    else:
        await _verify(js, consumer, info)
        return next_sequence
    try:
        stream = await js.stream_info(consumer.stream)
        if consumer.deliver_new_only and next_sequence is None:
            next_sequence = stream.state.last_seq + 1
        config = _config(consumer)
        if consumer.deliver_new_only and next_sequence is not None:
            # A stream made anew counts from 1: then all in it is new.
            config.deliver_policy = api.DeliverPolicy.BY_START_SEQUENCE
            config.opt_start_seq = next_sequence if next_sequence <= stream.state.last_seq + 1 else 1
        await js.add_consumer(consumer.stream, config)
    except nats.js.errors.NotFoundError as error:
        missing = error.err_code == STREAM_NOT_FOUND
        raise JetStreamLost(f"stream {consumer.stream} does not exist", stream_missing=missing) from error
    except nats.js.errors.BadRequestError as error:
        raise ProvisioningConflict(f"durable {consumer.durable} on {consumer.stream}: {_text(error)}") from error
    except nats.js.errors.APIError as error:
        raise JetStreamLost(_text(error)) from error
    return next_sequence


def _config(consumer: Consumer) -> api.ConsumerConfig:
    return api.ConsumerConfig(
        durable_name=consumer.durable,
        deliver_policy=api.DeliverPolicy.ALL,
        ack_policy=api.AckPolicy.EXPLICIT,
        ack_wait=consumer.ack_wait_s,
        max_deliver=-1,  # the limit is kept here, so that what is over it is kept as rejected
        filter_subjects=list(consumer.subjects),
        # Messages that wait for a retry count too: they must not stop the others.
        max_ack_pending=max(ACK_PENDING_MIN, consumer.slots * 64),
    )


async def _verify(js: nats.js.JetStreamContext, consumer: Consumer, info: api.ConsumerInfo) -> None:
    """Change in place what may be changed; name what may not."""
    have, want = info.config, _config(consumer)
    if have.deliver_subject is not None:
        raise _conflict(consumer, "deliver_subject", have.deliver_subject, "none (a pull consumer)")
    if have.ack_policy != want.ack_policy:
        raise _conflict(consumer, "ack_policy", have.ack_policy, want.ack_policy)
    subjects = have.filter_subjects or ([have.filter_subject] if have.filter_subject else [])
    same = (
        sorted(subjects) == sorted(want.filter_subjects or [])
        and have.ack_wait == want.ack_wait
        and have.max_deliver == want.max_deliver
        and have.max_ack_pending == want.max_ack_pending
    )
    if same:
        return
    changed = have.evolve(
        filter_subject=None,
        filter_subjects=want.filter_subjects,
        ack_wait=want.ack_wait,
        max_deliver=want.max_deliver,
        max_ack_pending=want.max_ack_pending,
    )
    try:
        await js.add_consumer(consumer.stream, changed)
    except nats.js.errors.BadRequestError as error:
        raise ProvisioningConflict(f"durable {consumer.durable} on {consumer.stream}: {_text(error)}") from error
    except nats.js.errors.APIError as error:
        raise JetStreamLost(_text(error)) from error


def _conflict(consumer: Consumer, field: str, have: object, want: object) -> ProvisioningConflict:
    return ProvisioningConflict(
        f"durable {consumer.durable} on {consumer.stream}: {field} is {have}, needed is {want}; "
        "it cannot be changed in place: delete the durable, or give the consumer another name"
    )


def _text(error: nats.js.errors.APIError) -> str:
    return f"{error.description or error} (code {error.err_code})"
