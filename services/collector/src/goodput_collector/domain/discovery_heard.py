"""Who stands at the other end of each interface, from what LLDP said there over time.

Usually one speaks, and that is the other end. A silent one keeps its cable: a link that is down carries no words. But on a
hub, or behind a virtual switch that passes LLDP on, several speak on one interface, and the one heard last is no more *the*
other end than the others; taking it would draw another cable at each look. So everybody who spoke is kept for as long as
they said (their time to live), and while there are several, there is no cable. After a cable was moved to another switch
this lasts until the old end's word runs out; another port of the same switch takes the old one's place at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from goodput_collector.domain.lldp import Neighbour

INTERFACES_MAX = 512
SPEAKERS_MAX = 8  # of one interface: nine say no more than eight
TTL_S, TTL_S_MAX = 120.0, 600.0
_LONG_AGO_S = -1e9


@dataclass(slots=True)
class _Speaker:
    said: Neighbour
    until_s: float


_Speakers = dict[tuple[str, str], _Speaker]


@dataclass(slots=True)
class Heard:
    _of: dict[str, _Speakers] = field(default_factory=dict)

    def restore(self, known: Mapping[str, Sequence[Neighbour]], now_s: float) -> None:
        """From an earlier process, the likelier interface first. One that was alone is believed until another speaks; of
        several each may still be there."""
        for at, (name, ends) in enumerate(list(known.items())[:INTERFACES_MAX]):
            until_s = now_s + TTL_S if len(ends) > 1 else _LONG_AGO_S - at
            self._of[name] = {(each.chassis, each.port): _Speaker(each, until_s) for each in ends[:SPEAKERS_MAX]}

    def frames(self, heard: Iterable[tuple[str, Neighbour]], now_s: float) -> None:
        """What was said on the wire, in that order. A time to live of 0 is a farewell: silent from now on."""
        for name, said in heard:
            if said.ttl_s:
                self._take(name, said, now_s + min(float(said.ttl_s), TTL_S_MAX))
            elif known := self._of.get(name, {}).get((said.chassis, said.port)):
                known.until_s = min(known.until_s, now_s)

    def table(self, heard: Mapping[str, Sequence[Neighbour]], now_s: float) -> None:
        """What somebody else (lldpd) holds for true now: on the interfaces that it names there is nobody else."""
        for name, ends in heard.items():
            if ends:
                self._speakers(name).clear()
                for said in ends:
                    self._take(name, said, now_s + TTL_S)

    def ends(self, now_s: float) -> dict[str, Neighbour]:
        """The one other end of each interface that has one: those who speak by name, then the silent, the last heard
        first. The order is always the same while the same ones speak."""
        for name, speakers in self._of.items():
            if alive := {key: each for key, each in speakers.items() if each.until_s > now_s}:
                self._of[name] = alive
        alone = [(name, each) for name, speakers in self._of.items() if len(speakers) == 1 for each in speakers.values()]
        alone.sort(key=lambda each: (0.0, each[0]) if each[1].until_s > now_s else (1e12 - each[1].until_s, each[0]))
        return {name: speaker.said for name, speaker in alone}

    def several(self) -> dict[str, list[Neighbour]]:
        """The interfaces on which more than one speak."""
        return {name: [each.said for each in of.values()] for name, of in self._of.items() if len(of) > 1}

    def _take(self, name: str, said: Neighbour, until_s: float) -> None:
        speakers = self._speakers(name)
        key = (said.chassis, said.port)
        for moved in [other for other in speakers if other[0] == said.chassis and other != key]:
            del speakers[moved]
        if key in speakers or len(speakers) < SPEAKERS_MAX:
            speakers[key] = _Speaker(said, until_s)

    def _speakers(self, name: str) -> _Speakers:
        """Those of one interface; the interface that is silent for longest makes room."""
        if name not in self._of and len(self._of) >= INTERFACES_MAX:
            del self._of[min(self._of, key=lambda each: max((one.until_s for one in self._of[each].values()), default=0.0))]
        return self._of.setdefault(name, {})
