"""Link-flap damping: how long a link that goes down again and again is left alone before it is trusted.

Every loss of the link adds a penalty, which halves every `half_life_s`. At `suppress` and above the link is held out of use;
it comes back when the penalty has decayed below `reuse`. A ceiling keeps the longest hold after the last loss to
`max_suppress_s`. The scheme is RFC 2439's, with times fit for links of a training job: with BGP's half-life of 15 minutes a
link would be out for an hour after the second loss.

Penalties have no unit; a loss is worth `penalty` of them. Times are whatever the caller's clock says, in seconds or as
`datetime`s of one clock; losses are given in their order, and one that is dated before the last counts as of the last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class DampingPolicy:
    """Raises ValueError where no link could ever be held, or released."""

    half_life_s: float = 15.0
    penalty: float = 1000.0
    suppress: float = 1600.0
    reuse: float = 1200.0
    max_suppress_s: float = 30.0

    def __post_init__(self) -> None:
        if not (self.half_life_s > 0 and self.penalty > 0 and self.max_suppress_s >= 0):
            raise ValueError("half_life_s and penalty must be positive, max_suppress_s not negative")
        if not 0 < self.reuse <= self.suppress:
            raise ValueError(f"reuse ({self.reuse:g}) must be positive and not above suppress ({self.suppress:g})")
        if self.ceiling < self.suppress:
            raise ValueError(
                f"the ceiling, reuse * 2^(max_suppress_s / half_life_s) = {self.ceiling:g}, is below suppress "
                f"({self.suppress:g}): no link would ever be held; make max_suppress_s longer or half_life_s shorter"
            )

    @property
    def ceiling(self) -> float:
        """No penalty is above it, however often a link is lost."""
        return self.reuse * math.pow(2.0, self.max_suppress_s / self.half_life_s)


@dataclass(frozen=True, slots=True)
class Damped:
    """The state of one link at a moment. `held` is whether it is to be left out of use."""

    policy: DampingPolicy = DampingPolicy()
    at: datetime | None = None  # of `penalty`; None: never lost
    penalty: float = 0.0
    held: bool = False

    def lost(self, at: datetime) -> Damped:
        """The link went down once more."""
        at = at if self.at is None else max(at, self.at)
        now = self.as_of(at)
        penalty = min(self.policy.ceiling, now.penalty + self.policy.penalty)
        return replace(now, at=at, penalty=penalty, held=now.held or penalty >= self.policy.suppress)

    def as_of(self, at: datetime) -> Damped:
        """The same link later, not lost again meanwhile. Before its last loss: as it is."""
        if self.at is None or at <= self.at:
            return self
        penalty = self.penalty * math.pow(2.0, -(at - self.at).total_seconds() / self.policy.half_life_s)
        return replace(self, at=at, penalty=penalty, held=self.held and penalty >= self.policy.reuse)

    @property
    def released_at(self) -> datetime | None:
        """When it will be trusted if it is not lost again. None: it is not held."""
        if not self.held or self.at is None:
            return None
        return self.at + timedelta(seconds=self.policy.half_life_s * math.log2(self.penalty / self.policy.reuse))


def damped(losses: Iterable[datetime], policy: DampingPolicy | None = None) -> Damped:
    """The state right after the last of these losses."""
    state = Damped(policy or DampingPolicy())
    for at in losses:
        state = state.lost(at)
    return state
