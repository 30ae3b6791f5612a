"""What an analysis of collectives can come to: a rank that is a root, or a group that is held inside an operation."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from goodput_correlator.domain.standing import OpKey


class RootKind(enum.StrEnum):
    NOT_JOINED = "not_joined"
    BEHIND = "behind"
    MISMATCH = "mismatch"
    ABSENT = "absent"


class Odd(enum.StrEnum):
    """How a rank is out of step with its group."""

    TYPE = "type"  # another operation
    SHAPE = "shape"
    DTYPE = "dtype"
    ORDER = "order"  # the same operations in another order, or one of them left out: the dumps do not tell which
    MISSING = "missing"  # a call left out
    EXTRA = "extra"  # a call too many


@dataclass(frozen=True, slots=True)
class Root:
    """`key` is the operation that shows it, `waiting` the ranks held up directly there, `lag` how many finished operations
    it has missed, `certainty` how well the recorder supports it, 0..1. `frames` are where it called, `theirs` where the
    others did, innermost first; empty where the dumps have no stacks. `odd` says how a mismatch differs."""

    rank: int
    kind: RootKind
    certainty: float
    key: OpKey
    op: str
    waiting: tuple[int, ...]
    lag: int = 0
    frames: tuple[str, ...] = ()
    detail: str = ""
    theirs: tuple[str, ...] = ()
    odd: Odd | None = None


@dataclass(frozen=True, slots=True)
class Inside:
    """All of `ranks` are inside `key` and nobody is missing."""

    key: OpKey
    op: str
    ranks: tuple[int, ...]
