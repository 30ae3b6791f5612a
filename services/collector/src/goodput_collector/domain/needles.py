"""Finding the few lines that matter in a large log, without reading the others.

A search for one literal runs at the speed of memory; one regular expression with thirty alternatives is ten times
slower than thirty such searches. A line with a needle need not mean anything, but a line without one cannot.
"""

from __future__ import annotations

from collections.abc import Iterator


class Needles:
    def __init__(self, *literals: bytes) -> None:
        self._literals = literals

    def found_in(self, data: bytes) -> bool:
        return any(literal in data for literal in self._literals)

    def places_in(self, data: bytes) -> Iterator[int]:
        """Where each of them stands, literal by literal."""
        for literal in self._literals:
            at = data.find(literal)
            while at >= 0:
                yield at
                at = data.find(literal, at + len(literal))
