"""What stands in a spool's segment: records, each with its length and a checksum, one message in each.

A record is whole or it is not: what was cut short by the end of its process ends the segment. Where a disk has damaged
one, reading goes on at the next that is whole: a record's first field gives it away, and its length and checksum say whether
it is one. A record that is whole and yet says nothing to this version (a newer collector wrote it, or a contract has
changed) is passed over, by itself.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from goodput_collector.application.ports import Outgoing
from goodput_collector.domain.path_text import encodable, encodable_all
from goodput_common.contracts.registry import BY_NAME, BY_STRUCT

RECORD_BYTES_MAX = 4 << 20
_HEAD = struct.Struct("<II")
_BEGIN = b'{"name":'  # of every record's body; in no other place does a NUL byte, of the length before it, stand so near
_SEARCH_BYTES = 1 << 20
_FILE_BYTES_MAX = 1 << 30  # no segment is so long


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


class Damage(NamedTuple):
    """A stretch in which no record is whole. `records` is how many seem to have stood there, `torn` whether it is what a
    process leaves that ends in mid-write."""

    records: int
    torn: bool


def records(path: Path, start: int) -> Iterator[tuple[int, Record | Damage | None]]:
    """(offset behind it, record) from `start` on; None for a record that is whole but does not decode. Raises OSError."""
    for end, found in _bodies(path, start):
        yield end, found if isinstance(found, Damage) else _decoded(found)


def count_records(path: Path, start: int) -> int:
    """How many stand there from `start` on, with those that are damaged. Raises OSError."""
    return sum(_share(found) for _, found in _bodies(path, start))


def _share(found: bytes | Damage) -> int:
    return 1 if isinstance(found, bytes) else 0 if found.torn else found.records


def _bodies(path: Path, start: int) -> Iterator[tuple[int, bytes | Damage]]:
    with path.open("rb") as file:
        at = start
        while at < _FILE_BYTES_MAX:
            if (body := _body_at(file, at)) is not None:
                at += _HEAD.size + len(body)
                yield at, body
                continue
            end, damage = _next_whole(file, at)
            if end == at:
                return
            at = end
            yield at, damage


def _body_at(file: BinaryIO, at: int) -> bytes | None:
    """Of the record that is whole there."""
    file.seek(at)
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    length, checksum = _HEAD.unpack(head)
    if not 0 < length <= RECORD_BYTES_MAX:
        return None
    body = file.read(length)
    return body if len(body) == length and zlib.crc32(body) == checksum else None


def _next_whole(file: BinaryIO, damaged: int) -> tuple[int, Damage]:
    """(where the next whole record begins, or the file ends; what stands before that)"""
    seen, at = 0, damaged
    while True:
        file.seek(at)
        data = file.read(_SEARCH_BYTES)
        if len(data) <= _HEAD.size or at >= _FILE_BYTES_MAX:
            end = at + len(data)
            return end, Damage(max(seen, 1), seen <= 1 and _is_cut_short(file, damaged, end))
        place = 0
        while (place := data.find(_BEGIN, max(place, _HEAD.size))) >= 0:
            begin = at + place - _HEAD.size
            length = int.from_bytes(data[place - _HEAD.size : place - 4], "little")
            if 0 < length <= RECORD_BYTES_MAX:
                if begin > damaged and _body_at(file, begin) is not None:
                    return begin, Damage(max(seen, 1), torn=False)
                seen += 1
            place += 1
        at += max(1, len(data) - len(_BEGIN) - _HEAD.size + 1)


def _is_cut_short(file: BinaryIO, at: int, end: int) -> bool:
    """Does a record begin there that would reach beyond the end?"""
    if end - at < _HEAD.size:
        return True
    file.seek(at)
    length = int.from_bytes(file.read(4), "little")
    return end - at - _HEAD.size < length <= RECORD_BYTES_MAX


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
