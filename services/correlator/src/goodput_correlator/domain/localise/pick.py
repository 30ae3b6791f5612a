"""What a variant of localisation takes and gives: a matrix, and the columns that it blames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from goodput_correlator.domain.localise.matrix import Matrix

SUSPECTS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """A column that is blamed. `score` 0..1 ranks picks of one variant; `rate` is the share of probes that it spoils;
    `explained` is how many bad probes of each row are laid on it."""

    column: int
    score: float
    rate: float
    explained: tuple[tuple[int, float], ...]

    @property
    def explains(self) -> float:
        return sum(probes for _, probes in self.explained)


Variant = Callable[[Matrix], Sequence[Pick]]


def rate_of(matrix: Matrix, column: int) -> float:
    """The share of a column's probes that fared badly, whatever else they crossed."""
    of_column = matrix.columns[column]
    bad = sum(matrix.bad[row] * share for row, share in of_column.rows)
    return min(1.0, bad / of_column.sent) if of_column.sent else 0.0
