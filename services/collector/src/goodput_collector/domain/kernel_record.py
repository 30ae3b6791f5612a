"""One record of /dev/kmsg: `<priority>,<number>,<µs since boot>,<flags>;<text>`, then lines of properties, each indented.

What is no printable character stands in the text as `\\xNN`; a message of several lines has `\\x0a` between them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_RECORD = re.compile(rb"\d{1,10},(?P<number>\d{1,19}),(?P<usec>\d{1,19}),[^;\n]*;(?P<text>[^\n]*)")
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")


class KernelRecord(NamedTuple):
    number: int
    since_boot_s: float
    text: bytes


def parse_record(record: bytes) -> KernelRecord | None:
    match = _RECORD.match(record)
    if match is None:
        return None
    number, usec, text = match.group("number", "usec", "text")
    if b"\\x" in text:
        text = _ESCAPED.sub(lambda escaped: bytes([int(escaped[1], 16)]), text)
    return KernelRecord(int(number), int(usec) / 1e6, text)
