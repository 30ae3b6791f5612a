"""Every alert that is not the root says what explains it, or is counted among those that nothing explains.

An alert is a line that reports an error, shortly before the trouble or since, of something that the job uses. It is
accounted for by being cited as evidence; by a rule of `aftereffects`; by what was set aside as a consequence; or by an
alternative that rests on it. What is left is said as well: it may be a second fault.

One fault brings about as many alike lines as a job has ranks. Of those that are alike some are shown, the others counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from goodput_common.contracts.ids import ComponentId, ComponentKind, InvalidComponentId, host_of, kind_of
from goodput_common.contracts.telemetry import Event, EventName, Severity
from goodput_common.contracts.verdict import Explained
from goodput_correlator.domain.aftereffects import Root, by_itself, follows_from
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import CLOCK_DOUBT_S, canonical, describe, ranks_on
from goodput_correlator.domain.finding import Finding

BEFORE_S = 30.0  # older lines, over which the job ran on, are history
ALIKE_SHOWN = 3
KINDS_SHOWN = 8  # of either sort
SYMPTOM_MAX = 300
ALARMING = frozenset({Severity.ERROR, Severity.FATAL})
LIKE_FAULTS = frozenset({EventName.XID, EventName.SXID, EventName.NCCL_NET_ERROR, EventName.NCCL_WATCHDOG})
"""Lines that people take for faults whatever their severity: explained where they can be, and no alerts otherwise."""


@dataclass(slots=True)
class _Alike:
    """Lines of one kind with one explanation: the first line of each component."""

    first: dict[ComponentId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accounted:
    """What explains the alerts of a case, and in words what nothing explains. Both are bounded and count the rest."""

    explained: tuple[Explained, ...] = ()
    unexplained: tuple[str, ...] = ()
    ways: frozenset[str] = frozenset()  # in which alerts follow: a new one is news, one more line of the kind is not


def alerts(case: Case) -> list[tuple[Observed, Event]]:
    """The lines that report an error of something that the job uses, in order. Without a job, all of them."""
    since = None if case.offline or case.since is None else case.since - timedelta(seconds=BEFORE_S + CLOCK_DOUBT_S)
    known: dict[ComponentId, bool] = {}
    found = []
    for each in case.events:
        event = each.fact
        if not isinstance(event, Event) or not (event.severity in ALARMING or event.name in LIKE_FAULTS):
            continue
        if since is not None and (event.last_at or event.observed_at) < since:
            continue
        component = canonical(case, event.component)
        if component not in known:
            known[component] = concerns(case, component)
        if known[component]:
            found.append((each, event))
    return found


def account(
    case: Case,
    roots: Iterable[Finding],
    aside: Iterable[Finding],
    already: Iterable[Explained],
) -> Accounted:
    """`roots` are the culprits, `aside` the findings that are shown otherwise (consequences, alternatives): what these rest
    on is accounted for with them. `already` is explained by other means, component by component."""
    causes = [Root(case, finding) for finding in roots]
    cited = {each.event_id for root in causes for each in root.finding.evidence}
    elsewhere = {each.event_id for finding in aside for each in finding.evidence}
    covered = {each.component for each in already}
    explained: dict[tuple[str, str], _Alike] = {}
    left: dict[tuple[str, str], _Alike] = {}
    for seen, event in alerts(case):
        if seen.id in cited:
            continue
        component, kind = canonical(case, event.component), kind_in_words(event)
        words = (follows_from(case, root, seen, event) for root in causes)
        because = next((each for each in words if each), "") or by_itself(event)
        if because:
            explained.setdefault((kind, because), _Alike()).first.setdefault(component, describe(seen))
        elif event.severity in ALARMING and seen.id not in elsewhere and component not in covered:
            left.setdefault((kind, ""), _Alike()).first.setdefault(component, describe(seen))
    return Accounted(_told(explained), _left(left), frozenset(because for _, because in list(explained)[:KINDS_SHOWN]))


def concerns(case: Case, component: ComponentId) -> bool:
    """Whether the job uses it, as far as can be told."""
    if case.placement is None:
        return True
    try:
        kind, host = kind_of(component), host_of(component)
    except InvalidComponentId:
        return False
    if kind is ComponentKind.RANK:
        return component.startswith(f"rank:{case.job}/")
    if kind is ComponentKind.HOST:
        return host in case.placement.hosts
    if component not in case.topology:
        return host is not None and host in case.placement.hosts
    if kind in (ComponentKind.NIC, ComponentKind.PORT, ComponentKind.LINK) and not case.topology.carries_traffic(component):
        return False
    return bool(ranks_on(case, component))


def limited(found: list[Explained], most: int, rest: Callable[[int], Explained]) -> list[Explained]:
    """At most `most`, and where there are more, one that says how many."""
    return found if len(found) <= most else [*found[:most], rest(len(found) - most)]


def kind_in_words(event: Event) -> str:
    number = event.attrs.get("xid") or event.attrs.get("sxid")
    return f"{event.name.value} {number}" if number else event.name.value


def _told(groups: dict[tuple[str, str], _Alike]) -> tuple[Explained, ...]:
    out: list[Explained] = []
    for (kind, because), alike in list(groups.items())[:KINDS_SHOWN]:
        some = [Explained(component=each, symptom=line[:SYMPTOM_MAX], because=because) for each, line in alike.first.items()]

        def rest(more: int, kind: str = kind, because: str = because) -> Explained:
            return Explained(component=None, symptom=f"{kind}: {more} more like it", because=because)

        out += limited(some, ALIKE_SHOWN, rest)
    if further := _beyond(groups):
        out.append(Explained(component=None, symptom=f"{further} further alerts", because="they follow in similar ways"))
    return tuple(out)


def _left(groups: dict[tuple[str, str], _Alike]) -> tuple[str, ...]:
    out = []
    for (kind, _), alike in list(groups.items())[:KINDS_SHOWN]:
        component, line = next(iter(alike.first.items()))
        more = f", and {len(alike.first) - 1} more like it" if len(alike.first) > 1 else ""
        out.append(f"{kind} of {component}: {line}"[:SYMPTOM_MAX] + more)
    if further := _beyond(groups):
        out.append(f"{further} further alerts")
    return tuple(out)


def _beyond(groups: dict[tuple[str, str], _Alike]) -> int:
    return sum(len(alike.first) for alike in list(groups.values())[KINDS_SHOWN:])
