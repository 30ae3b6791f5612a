"""What shows an effect, and whether it is the effect of *that* culprit.

Three kinds of facts are about somebody else and speak of the culprit nevertheless: a peer's "connection closed by …", which
names the culprit's host by its address; a port that is told to stop, where the pauses lead to the culprit; a link that went
down together with all others of the host that is said to be down. Each is only as good as its relation to the culprit, so
that relation is looked for here, in the topology and in all that was delivered. A line of the same kind that leads
elsewhere shows nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.telemetry import Counter, Event, EventName
from goodput_faultlab.evidence_kinds import PAUSES, carrier_lost, lost_connection
from goodput_faultlab.evidence_ranks import Delivered
from goodput_topology.graph import Fabric

ANY = ""  # a pause of which nobody says the priority
_PRIORITY = re.compile(r"prio(\d)")


class Effects:
    """Built of everything that was delivered; what is no such effect is passed over."""

    def __init__(self, fabric: Fabric, delivered: Iterable[Delivered]) -> None:
        self._fabric = fabric
        self._stopped: defaultdict[ComponentId, dict[ComponentId, set[str]]] = defaultdict(dict)  # ports by their switch
        self._lost_links: set[ComponentId] = set()
        for each in delivered:
            if stopped(each.fact):
                self._note_stopped(each.fact)
            elif carrier_lost(each.fact):
                link = fabric.link_of(fabric.canonical(each.fact.component))
                self._lost_links |= {link} if link is not None else set()
        self._hosts: dict[str, str] = {}
        for nic in fabric.of_kind(ComponentKind.NIC):
            if address := fabric.attr(nic, "addr"):
                self._hosts[address] = ids.host_of(nic) or ""

    def _note_stopped(self, fact: Counter | Event) -> None:
        port = self._told_to_stop(fact)
        switch = self._fabric.switch_of(port) if port is not None and port.startswith("port:") else None
        if port is not None and switch is not None:
            self._stopped[switch].setdefault(port, set()).add(_priority(fact))

    def _told_to_stop(self, fact: Counter | Event) -> ComponentId | None:
        """Who may not send: whoever received the pauses, or is at the other end of whoever sent them."""
        told = self._fabric.canonical(fact.component)
        sends = isinstance(fact, Counter) and fact.name.startswith(("tx", "out"))
        return self._fabric.peer_of(told) if sends else told

    def names_host(self, fact: object, hosts: Iterable[str]) -> bool:
        """Whether it is about a connection to one of these hosts."""
        if not isinstance(fact, Event) or not lost_connection(fact):
            return False
        peer = fact.attrs["peer"]
        return self._hosts.get(peer, peer) in hosts

    def cut_off(self, fact: object, nics: Iterable[ComponentId]) -> bool:
        """Whether it is about a link of one of these adapters of a host, which lost the links of all of them."""
        if not carrier_lost(fact):
            return False
        links = {link for nic in nics if (link := self._fabric.link_of(nic)) is not None}
        mine = self._fabric.link_of(self._fabric.canonical(getattr(fact, "component", "")))
        return mine in links and links <= self._lost_links

    def leads_to(self, fact: object, culprit: ComponentId) -> bool:
        """Whether a pause comes from the culprit: directly, or by way of switches that were told to stop themselves."""
        if not isinstance(fact, Counter | Event) or not stopped(fact):
            return False
        priority, port = _priority(fact), self._told_to_stop(fact)
        ahead, seen = [port] if port is not None else [], set[ComponentId]()
        while ahead:
            port = ahead.pop()
            if port == culprit:
                return True
            teller = self._fabric.peer_of(port)
            if port in seen or teller is None:
                continue
            seen.add(port)
            switch = self._fabric.switch_of(teller) if teller.startswith("port:") else None
            if culprit in (teller, switch):
                return True
            held = self._stopped.get(switch, {}) if switch is not None else {}
            ahead += [each for each, of in held.items() if each != teller and (priority == ANY or of & {priority, ANY})]
        return False


def stopped(fact: object) -> bool:
    """Somebody is told to stop: counted pauses, or a watchdog's word that a queue has stood still for too long."""
    return PAUSES(fact) or (
        isinstance(fact, Event) and fact.name is EventName.PAUSE_STORM and fact.attrs.get("state") != "restored"
    )


def _priority(fact: Counter | Event) -> str:
    if isinstance(fact, Event):
        return fact.attrs.get("priority", ANY)
    found = _PRIORITY.search(fact.name)
    return found[1] if found else ANY
