"""What stands in a spool's segment: records, each with its length and a checksum, one message in each.

A record is whole or it is not: what was cut short by the end of its process ends the segment. A record that is whole and
yet says nothing to this version (a newer collector wrote it, or a contract has changed) is passed over, by itself.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from goodput_collector.application.ports import Outgoing
from goodput_collector.domain.path_text import encodable, encodable_all
from goodput_common.contracts.registry import BY_NAME, BY_STRUCT

RECORD_BYTES_MAX = 4 << 20
_HEAD = struct.Struct("<II")


class Record(msgspec.Struct, omit_defaults=True):
    """`marked` says when its bookmarks were current: see `Bookmarks.restore`."""

    name: str
    seq: int
    boot_id: str
    type: str
    subject: str
    id: str
    source: str
    time: Any
    body: msgspec.Raw
    component: str = ""
    marks: dict[str, int | str] = {}
    marked: int = 0


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


def encoded(message: Outgoing, *, name: str, seq: int, boot_id: str, marked: int) -> tuple[Outgoing, bytes]:
    """A record as bytes, and the message as it can be sent: text that cannot be encoded is escaped in both."""
    try:
        return message, _framed(message, name, seq, boot_id, marked)
    except UnicodeEncodeError:
        message = _escaped(message)
        return message, _framed(message, name, seq, boot_id, marked)


def _escaped(message: Outgoing) -> Outgoing:
    return msgspec.structs.replace(
        message,
        subject=encodable(message.subject),
        id=encodable(message.id),
        source=encodable(message.source),
        component=encodable(message.component),
        data=msgspec.convert(encodable_all(msgspec.to_builtins(message.data)), type(message.data)),
        marks={encodable(name): encodable(mark) if isinstance(mark, str) else mark for name, mark in message.marks.items()},
    )


def _framed(message: Outgoing, name: str, seq: int, boot_id: str, marked: int) -> bytes:
    record = Record(
        name=name,
        seq=seq,
        boot_id=boot_id,
        type=BY_STRUCT[type(message.data)].name,
        subject=message.subject,
        id=message.id,
        source=message.source,
        time=message.time,
        body=msgspec.Raw(_encoder.encode(message.data)),
        component=message.component,
        marks=dict(message.marks),
        marked=marked if message.marks else 0,
    )
    body = _encoder.encode(record)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def records(path: Path, start: int) -> Iterator[tuple[int, Record | None]]:
    """(offset behind it, record) from `start` to the first record that is not whole; None for a record that is whole but
    does not decode. Raises OSError."""
    with path.open("rb") as file:
        file.seek(start)
        while True:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return
            length, checksum = _HEAD.unpack(head)
            body = file.read(length) if length <= RECORD_BYTES_MAX else b""
            if len(body) != length or zlib.crc32(body) != checksum:
                return
            yield file.tell(), _decoded(body)


def _decoded(body: bytes) -> Record | None:
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def message_of(record: Record | None) -> Outgoing | str:
    """The message, or why it cannot be had."""
    if record is None:
        return "a record that cannot be decoded"
    known = BY_NAME.get(record.type)
    if known is None:
        return f"a message of the unknown type {record.type}"
    try:
        return Outgoing(
            subject=record.subject,
            id=record.id,
            source=record.source,
            time=msgspec.convert(record.time, type=datetime),
            data=msgspec.json.decode(record.body, type=known.struct),
            component=record.component,
        )
    except (msgspec.DecodeError, RecursionError) as error:
        return f"a {record.type} that cannot be decoded: {error}"
