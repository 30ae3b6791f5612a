"""Messages that nobody could use, kept as they came, with the reason.

A rejection is stored under `goodput.rejected.<stream>` with the raw body and the original headers; what is known about it is
added as headers. It is listed by `Bus.rejections` and `goodput` on the command line, never consumed like a message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from goodput_common.bus.codec import MESSAGE_ID_HEADER, escape, unescape

REASON_CHARS_MAX = 1000
_PREFIX = "goodput-"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a foreign producer may have got others past its client

_DIGITS = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """`durable` is the consumer that refused it; `headers` and `body` are the original ones."""

    reason: str
    stream: str
    subject: str
    sequence: int
    durable: str
    deliveries: int
    received_at: datetime
    headers: dict[str, str]
    body: bytes
    rejected_at: datetime | None = None


def to_headers(rejection: Rejection) -> dict[str, str]:
    """Headers under which it is stored. The message id keeps a second try from storing it twice."""
    kept = {
        name: value
        for name, value in rejection.headers.items()
        if _NAME.fullmatch(name) and not name.lower().startswith("nats-")
    }
    at_us = int((rejection.received_at - datetime.fromtimestamp(0, UTC)).total_seconds() * 1e6)
    return kept | {
        f"{_PREFIX}reason": escape(rejection.reason[:REASON_CHARS_MAX]),
        f"{_PREFIX}stream": rejection.stream,
        f"{_PREFIX}subject": rejection.subject,
        f"{_PREFIX}sequence": str(rejection.sequence),
        f"{_PREFIX}durable": escape(rejection.durable),
        f"{_PREFIX}deliveries": str(rejection.deliveries),
        f"{_PREFIX}received-at": rejection.received_at.isoformat(),
        MESSAGE_ID_HEADER: f"rejected/{rejection.stream}/{rejection.sequence}/{at_us}/{escape(rejection.durable)}",
    }


def from_stored(headers: Mapping[str, str], body: bytes, rejected_at: datetime) -> Rejection:
    """The rejection as it was stored. Fields that its headers lack, or that make no sense there, are empty: anybody who may
    publish there may have written them."""
    own = {name[len(_PREFIX) :]: unescape(value) for name, value in headers.items() if name.startswith(_PREFIX)}
    return Rejection(
        reason=own.get("reason", ""),
        stream=own.get("stream", ""),
        subject=own.get("subject", ""),
        sequence=_number(own.get("sequence", "")),
        durable=own.get("durable", ""),
        deliveries=_number(own.get("deliveries", "")),
        received_at=_time(own.get("received-at", "")) or rejected_at,
        headers={
            name: value
            for name, value in headers.items()
            if not name.startswith(_PREFIX) and not name.lower().startswith("nats-")
        },
        body=body,
        rejected_at=rejected_at,
    )


def _number(text: str) -> int:
    return int(text) if _DIGITS.fullmatch(text) else 0


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None
