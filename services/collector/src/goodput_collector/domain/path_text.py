"""File names as text that a message may carry.

To Linux a file name is bytes. Python keeps those that are not UTF-8 as lone surrogates, which no encoder takes: one
badly named file would poison every message and every bookmark line that it is mentioned in.
"""

from __future__ import annotations

import re
from pathlib import PurePath

_BAD = re.compile("[\ud800-\udfff]")
_BAD_OR_PERCENT = re.compile("[%\ud800-\udfff]")


def path_text(path: PurePath | str) -> str:
    """The path itself if it is UTF-8; bytes that are not, and percent signs, as %XX. No two paths have the same text."""
    return _BAD_OR_PERCENT.sub(_escaped, str(path))


def encodable(text: str) -> str:
    """Any text, with what cannot be encoded as %XX: the last line of defence, for text of unknown origin."""
    return text if text.isascii() else _BAD.sub(_escaped, text)


def encodable_all(value: object) -> object:
    """The same for every text in lists and mappings."""
    match value:
        case str():
            return encodable(value)
        case dict():
            return {encodable_all(key): encodable_all(each) for key, each in value.items()}
        case list() | tuple():
            return [encodable_all(each) for each in value]
        case _:
            return value


def _escaped(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"%{code - 0xDC00:02X}" if 0xDC80 <= code <= 0xDCFF else f"%{code:02X}"
