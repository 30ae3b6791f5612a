"""The grid of the broker's time on which a fabric is judged: quarters of a second.

A moment between two grid times is never judged. Most is judged at whole seconds only, see `pressing`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

GRID_S = 0.25
GRID = timedelta(seconds=GRID_S)
_GRID_US = GRID // timedelta(microseconds=1)


def grid_floor(at: datetime) -> datetime:
    """The last grid time that is not after `at`."""
    return at.astimezone(UTC).replace(microsecond=at.microsecond // _GRID_US * _GRID_US)
