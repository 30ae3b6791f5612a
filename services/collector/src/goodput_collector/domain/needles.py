"""Finding the few lines that matter in a large log, without reading the others.

A search for one literal runs at the speed of memory; one regular expression with thirty alternatives is ten times
slower than thirty such searches. A line with a needle need not mean anything, but a line without one cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class Needles:
    def __init__(self, *literals: bytes) -> None:
        self._literals = literals

    def found_in(self, data: bytes) -> bool:
        for literal in self._literals:  # noqa: SIM110 - a loop: three times as fast, and asked of every line
            if literal in data:
                return True
        return False

    def lines_in(self, lines: Sequence[bytes]) -> Iterator[bytes]:
        """Those of `lines` that have one, in order; searched in one piece."""
        chunk = b"\n".join(lines)
        end = -1
        for at in sorted(set(self.places_in(chunk))):
            if at < end:
                continue  # in the line just given
            begin, end = chunk.rfind(b"\n", 0, at) + 1, chunk.find(b"\n", at)
            end = len(chunk) if end < 0 else end
            yield chunk[begin:end]

    def places_in(self, data: bytes) -> Iterator[int]:
        """Where each of them stands, literal by literal."""
        for literal in self._literals:
            at = data.find(literal)
            while at >= 0:
                yield at
                at = data.find(literal, at + len(literal))
