"""CloudEvents 1.0 in binary mode over NATS headers; the body is JSON of the struct that the registry names.

Attributes travel as headers (`ce-id`, `ce-type` ...), percent-encoded where a header could not carry the text, so that a
router or a person with `nats sub` reads them without knowing the body. `Nats-Msg-Id` repeats `ce-id`: the server drops
doubles by it.

A large body may be compressed (`content-encoding: zstd`): the stream then keeps, and every consumer fetches, a fifth of it.
Decompression is bounded.

JSON knows no NaN: msgspec writes one as null, and the reader then rejects the message. Leave a field out instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import zstandard
from opentelemetry import propagate

from goodput_common.bus.errors import DecodeError
from goodput_common.bus.ports import Message
from goodput_common.contracts.registry import BY_NAME, BY_STRUCT

SPECVERSION = "1.0"
CONTENT_TYPE = "application/json"
ENCODING = "zstd"
BODY_BYTES_MAX = 16 << 20  # decompressed; a message of ours has less than the server's 1 MiB when it is made
MESSAGE_ID_HEADER = "Nats-Msg-Id"
_PLAIN = re.compile(r"[!#$&-~]*")  # printable ASCII but blank, `"` and `%`
_SAFE = "!#$&'()*+,/:;<=>?@[\\]^`{|}"
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Encoded:
    """What goes on the wire."""

    headers: dict[str, str]
    body: bytes


def escape(text: str) -> str:
    """A header value for any text."""
    return text if _PLAIN.fullmatch(text) else quote(text, safe=_SAFE, errors="surrogatepass")


def unescape(text: str) -> str:
    return unquote(text, errors="replace") if "%" in text else text


def texts(headers: Mapping[str, Any] | None) -> dict[str, str]:
    """Headers as the client read them from a stream, all as text: one that is not ASCII comes as an object of its own."""
    return {str(name): str(value) for name, value in (headers or {}).items()}


def wire_bytes(headers: Mapping[str, str], body: bytes) -> int:
    """What the server counts against its limit: body and header block (`NATS/1.0`, a line a header, an empty line)."""
    lines = sum(len(name.encode()) + len(value.encode()) + 4 for name, value in headers.items())
    return len(body) + (len("NATS/1.0\r\n") + lines + 2 if headers else 0)


def dataschema(type_name: str) -> str:
    """The URI that names a type's JSON Schema (its `$id`); the file is `schemas/messages/<type>.json`."""
    return f"urn:goodput:message:{type_name}"


def encode(
    data: msgspec.Struct,
    *,
    id: str,
    source: str,
    time: datetime,
    component: str = "",
    compress_over: int | None = None,
) -> Encoded:
    """A body of more than `compress_over` bytes is compressed; None: none is.

    Raises TypeError for a struct that is not in the registry, ValueError for an id, source or time that cannot travel.
    """
    known = BY_STRUCT.get(type(data))
    if known is None:
        raise TypeError(f"{type(data).__name__} is no message: add it to goodput_common.contracts.registry")
    if not id or not source:
        raise ValueError("a message needs an id and a source")
    if time.tzinfo is None:
        raise ValueError(f"time {time} has no time zone")
    message_id = escape(id)
    headers = {
        "ce-specversion": SPECVERSION,
        "ce-id": message_id,
        "ce-type": known.name,
        "ce-source": escape(source),
        "ce-time": time.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "ce-dataschema": dataschema(known.name),
        "content-type": CONTENT_TYPE,
        MESSAGE_ID_HEADER: message_id,
    }
    if component:
        headers["ce-subject"] = escape(component)
    propagate.inject(headers)  # traceparent, when a span is active
    body = _encoder.encode(data)
    if compress_over is not None and len(body) > compress_over:
        headers["content-encoding"] = ENCODING
        body = zstandard.ZstdCompressor(level=3, write_content_size=True).compress(body)
    return Encoded(headers, body)


def decode(
    subject: str,
    headers: Mapping[str, str] | None,
    body: bytes,
    *,
    received_at: datetime,
    stream: str = "",
    sequence: int = 0,
    deliveries: int = 1,
) -> Message:
    """Raises DecodeError, whose reason names the header or the field."""
    attributes = _lower(headers or {})
    type_name = attributes.get("ce-type", "")
    if not type_name:
        raise DecodeError("header ce-type is missing")
    if type_name not in BY_NAME:
        raise DecodeError(f"header ce-type: {type_name!r} is not a known message type", type_name=type_name)

    def required(name: str) -> str:
        value = attributes.get(name, "")
        if not value:
            raise DecodeError(f"header {name} is missing", type_name=type_name)
        return unescape(value)

    if (version := required("ce-specversion")) != SPECVERSION:
        raise DecodeError(f"header ce-specversion: expected {SPECVERSION}, got {version!r}", type_name=type_name)
    return Message(
        id=required("ce-id"),
        type=type_name,
        source=required("ce-source"),
        subject=subject,
        time=_time(required("ce-time"), type_name),
        data=decode_body(type_name, _plain(body, attributes.get("content-encoding", ""), type_name)),
        stream=stream,
        sequence=sequence,
        received_at=received_at,
        deliveries=deliveries,
        component=unescape(attributes.get("ce-subject", "")),
        traceparent=attributes.get("traceparent", ""),
    )


def _plain(body: bytes, encoding: str, type_name: str) -> bytes:
    if not encoding:
        return body
    if encoding != ENCODING:
        raise DecodeError(f"header content-encoding: {encoding!r} is not known; {ENCODING} is", type_name=type_name)
    try:
        size = zstandard.frame_content_size(body)
        if not 0 <= size <= BODY_BYTES_MAX:
            raise DecodeError(f"body: {size} bytes when decompressed, at most {BODY_BYTES_MAX}", type_name=type_name)
        return zstandard.ZstdDecompressor().decompress(body, max_output_size=BODY_BYTES_MAX)
    except zstandard.ZstdError as error:
        raise DecodeError(f"body is not {ENCODING}: {error}", type_name=type_name) from error


def decode_body(type_name: str, body: bytes | msgspec.Raw) -> Any:
    """The struct of `type_name`. Raises DecodeError."""
    try:
        return _decoder(type_name).decode(body)
    except msgspec.ValidationError as error:
        raise DecodeError(f"body does not fit {type_name}: {error}", type_name=type_name) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError(f"body is not JSON: {error}", type_name=type_name) from error
    except RecursionError as error:
        raise DecodeError("body is nested too deeply", type_name=type_name) from error


@cache
def _decoder(type_name: str) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(BY_NAME[type_name].struct)


def _lower(headers: Mapping[str, str]) -> Mapping[str, str]:
    # Our own producers write lower case; others may not.
    return headers if "ce-type" in headers else {name.lower(): value for name, value in headers.items()}


def _time(text: str, type_name: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise DecodeError(f"header ce-time: {text!r} is not an RFC 3339 time", type_name=type_name) from None
    if time.tzinfo is None:
        raise DecodeError(f"header ce-time: {text!r} has no time zone", type_name=type_name)
    return time.astimezone(UTC)
