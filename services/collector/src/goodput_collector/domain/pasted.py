"""What is common to the parsers of a tool's output as people paste it: nothing is dropped in silence.

Such a parser gives what it has understood and an `Unread`: how many lines it could make nothing of, and the first of them.
Lines that are known to say nothing (a border, a heading, a counter that nobody needs) are understood. It never raises, and
numbers beyond 64 bits are no numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

LINE_CHARS_MAX = 200
_DIGITS_MAX = 20


@dataclass(slots=True)
class Unread:
    """`first` is the first such line, shortened; "" when there was none."""

    count: int = 0
    first: str = ""

    def note(self, line: str) -> None:
        """One line that was not understood; blank ones are nothing to understand."""
        if not (text := line.strip()):
            return
        self.count += 1
        self.first = self.first or text[:LINE_CHARS_MAX]

    def add(self, other: Unread) -> None:
        self.count += other.count
        self.first = self.first or other.first


def number(text: str) -> int | None:
    """A decimal or `0x` number of at most 64 bits, not negative; None for anything else."""
    text = text.strip()
    base = 16 if text[:2].lower() == "0x" else 10
    digits = text[2:] if base == 16 else text
    if not digits.isascii() or not digits.isalnum() or len(digits) > _DIGITS_MAX:
        return None
    try:
        value = int(digits, base)
    except ValueError:
        return None
    return value if value < 2**64 else None
