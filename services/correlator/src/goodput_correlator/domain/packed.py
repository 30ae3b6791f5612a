"""One measurement in 48 bytes, and back again without loss.

What the facts of one message share (its id, the host, when the broker got it) is kept once, as a numbered `Reading`, for as
long as a record refers to it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Counter, CounterDoubt, Gauge

if TYPE_CHECKING:
    from goodput_correlator.domain.case import Observed

# reading, observed at (us), delta, value, interval s, number in the message, attributes, what it is, how sure
_COUNTER = struct.Struct("=QqqQdHHBBxx")
_GAUGE = struct.Struct("=Qq8xd8xHHBxxx")
RECORD_BYTES = _COUNTER.size
_IS_COUNTER, _IS_GAUGE = 1, 2
_KIND_AT = RECORD_BYTES - 4
_ALONE = 0xFFFF  # the message is the fact
_ATTRS_MAX = 60_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_NO_DOUBT = CounterDoubt.NONE
_DOUBTS = (_NO_DOUBT, *(each for each in CounterDoubt if each is not _NO_DOUBT))
_DOUBT_NUMBERS = {doubt: n for n, doubt in enumerate(_DOUBTS)}


class Unpackable(ValueError):
    """A number that no counter has (more than 64 bits), more facts than a message holds, or one set of attributes too
    many: the fact is left out."""


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What the facts of one message share."""

    id: str
    host: str
    source: str
    received_at: datetime

    @classmethod
    def of(cls, seen: Observed) -> Reading:
        return cls(seen.id, seen.host, seen.source, seen.received_at)


class Packer:
    """Knows the readings and sets of attributes that records refer to by number."""

    def __init__(self) -> None:
        self._readings: dict[int, Reading] = {}
        self._begun = 0
        self._attrs: list[dict[str, str]] = [{}]
        self._attrs_numbers: dict[tuple[tuple[str, str], ...], int] = {}
        self._at: datetime = _EPOCH  # when the last fact was observed: those of one message mostly share it
        self._at_us = 0

    def begin(self, reading: Reading) -> int:
        self._begun += 1
        self._readings[self._begun] = reading
        return self._begun

    def reading(self, number: int) -> Reading:
        return self._readings[number]

    def pack(self, reading: int, n: int | None, fact: Counter | Gauge) -> bytes:
        """Raises Unpackable."""
        at = fact.observed_at
        if at is not self._at and at != self._at:
            self._at, self._at_us = at, (at - _EPOCH) // _US
        number = _ALONE if n is None else n
        try:
            if isinstance(fact, Gauge):
                attrs = self._number(fact.attrs) if fact.attrs else 0
                return _GAUGE.pack(reading, self._at_us, fact.value, number, attrs, _IS_GAUGE)
            doubt = fact.doubt
            return _COUNTER.pack(
                reading, self._at_us, fact.delta, fact.value, fact.interval_s, number, 0, _IS_COUNTER,
                0 if doubt is _NO_DOUBT else _DOUBT_NUMBERS[doubt],
            )  # fmt: skip
        except struct.error as error:
            raise Unpackable(f"{fact.component} {fact.name}: {error}") from error

    def unpack(self, component: ComponentId, name: str, record: bytes) -> Observed:
        from goodput_correlator.domain.case import Observed  # which holds measurements

        fact: Counter | Gauge
        if record[_KIND_AT] == _IS_GAUGE:
            reading, at_us, value, n, attrs, _ = _GAUGE.unpack(record)
            at = _EPOCH + timedelta(microseconds=at_us)
            fact = Gauge(component=component, name=name, observed_at=at, value=value, attrs=self._attrs[attrs])
        else:
            reading, at_us, delta, count, interval_s, n, _, _, doubt = _COUNTER.unpack(record)
            at = _EPOCH + timedelta(microseconds=at_us)
            fact = Counter(
                component=component, name=name, observed_at=at, delta=delta, interval_s=interval_s, value=count,
                doubt=_DOUBTS[doubt],
            )  # fmt: skip
        of = self._readings[reading]
        return Observed(of.id if n == _ALONE else f"{of.id}#{n}", of.host, of.source, at, of.received_at, fact)

    def forget(self, kept: Iterable[bytes]) -> None:
        """Leave out the readings that no record of `kept` refers to."""
        used: set[int] = set()
        for records in kept:
            used.update(memoryview(records).cast("Q")[:: RECORD_BYTES // 8])
        self._readings = {number: reading for number, reading in self._readings.items() if number in used}

    def _number(self, attrs: dict[str, str]) -> int:
        key = tuple(sorted(attrs.items()))
        number = self._attrs_numbers.get(key)
        if number is None:
            if len(self._attrs) >= _ATTRS_MAX:
                raise Unpackable(f"more than {_ATTRS_MAX} different sets of attributes")
            number = self._attrs_numbers[key] = len(self._attrs)
            self._attrs.append(dict(attrs))
        return number
