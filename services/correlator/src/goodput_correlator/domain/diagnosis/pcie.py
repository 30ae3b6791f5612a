"""PCIe between a GPU or a network adapter and its host: trained down to fewer or slower lanes, sending everything again, or
losing transactions.

- *Fewer lanes or a lower generation than both ends could* makes a GPU's rank late with every batch; an adapter at such a
  link cannot pass on what arrives and tells its switch to stop. An idle GPU lowers its generation to save power: that counts
  only while its rank works, and is nothing while the job stands still. A width below the maximum is no saving.
- *Replays* repair what was garbled. A few a minute are noise on any fleet, and so are corrected AER lines; many a second
  cost time.
- *Uncorrected and fatal errors* (AER) on a device of the job mean lost transactions: its process hangs or dies. The kernel
  logs them and counts them for each device; either alone is enough.

A downgrade that has been there for as long as anybody looked, while the rank on it is not late, is no reason for anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from goodput_common.contracts.ids import ComponentId, host_of
from goodput_common.contracts.telemetry import Event, EventName, Gauge, State
from goodput_common.contracts.verdict import Action, ActionKind, Evidence, FaultClass
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import cite, events, gpus_of_job, nics_of_job, ranks_on, states, symptoms_of
from goodput_correlator.domain.diagnosis._device import by_component, device_finding
from goodput_correlator.domain.finding import Finding
from goodput_correlator.domain.hindrances import BEFORE_S
from goodput_correlator.domain.lateness import Lateness, lateness

ENGINE = "pcie"
REPLAYS_PER_S = 1.0  # DCGM warns from eight a minute; a storm is far beyond that
STORM_PER_S = 20.0
STALLED_PERCENT = 10.0  # of the time that an adapter waits for PCIe
NOT_LATE, UNKNOWN_LATE = 0.3, 0.75  # factors where the rank on it is not late, or nobody can tell
LOST = {"uncorrected": 0.86, "fatal": 0.92}
LOST_COUNTERS = {"aer_nonfatal": 0.82, "aer_fatal": 0.88}  # a count does not say what was lost
COUNTED_BEFORE_S = 8.0  # tables are read every few seconds


@dataclass(slots=True)
class Link:
    """What is wrong with one device's PCIe link, and what shows it."""

    device: ComponentId
    score: float = 0.0
    words: list[str] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    slowed: bool = False  # the device itself says that it waits

    def add(self, score: float, words: str, seen: Observed) -> None:
        self.score = 1.0 - (1.0 - self.score) * (1.0 - score)
        self.words.append(words)
        self.evidence.append(cite(seen, words, score, self.device))


def diagnose(case: Case) -> tuple[Finding, ...]:
    if case.slow is not None and case.placement is not None:
        return tuple(_slow(case))
    return tuple(_lost(case))


# ------------------------------------------------------------------------------------------------------------- slower


def _slow(case: Case) -> Iterable[Finding]:
    seen = lateness(case)
    late_gpus = _with_late_ranks(case, seen)
    for device in (*gpus_of_job(case), *nics_of_job(case)):
        link = _link(case, device)
        if link is not None:
            finding = _weighed(case, link, seen, late=device in late_gpus)
            if finding.score >= 0.2:
                yield finding


def _with_late_ranks(case: Case, seen: Lateness) -> frozenset[ComponentId]:
    return frozenset(gpu for gpu in gpus_of_job(case) if seen.late and seen.late.keys() & set(ranks_on(case, gpu)))


def _link(case: Case, device: ComponentId) -> Link | None:
    link = Link(device)
    state = states(case).get((device, "pcie_link"))
    if state is not None:
        _trained_down(link, state)
    series = case.measurements.names(device)
    if not link.score and not series.keys() & {"pcie_replays", "aer_correctable", *LOST_COUNTERS}:
        return None
    since = (case.since or case.now) - timedelta(seconds=BEFORE_S)
    for name in ("pcie_replays", "aer_correctable"):
        rise = case.measurements.rise(device, name, since)
        if rise.facts and rise.per_s >= REPLAYS_PER_S:
            storm = min(1.0, rise.per_s / STORM_PER_S)
            link.add(
                0.5 + 0.35 * storm, f"{name} rises by {rise.per_s:.0f} a second: it sends everything again", rise.facts[-1]
            )
    for name in LOST_COUNTERS:
        rise = case.measurements.rise(device, name, since)
        if rise.facts:
            link.add(0.6, f"{name} rose by {rise.delta}: transactions are lost", rise.facts[-1])
    if link.score and device.startswith("nic:"):
        _starved(case, link)
    return link if link.score else None


def _trained_down(link: Link, seen: Observed) -> None:
    attrs = seen.fact.attrs if isinstance(seen.fact, State) else {}
    gen, width, gen_max, width_max = (_number(attrs.get(name)) for name in ("gen", "width", "gen_max", "width_max"))
    if width and width < width_max:
        link.add(0.85, f"its PCIe link has {width} of {width_max} lanes", seen)
    if gen and gen < gen_max:
        link.add(0.75, f"its PCIe link runs at generation {gen} of {gen_max}", seen)


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


def _starved(case: Case, link: Link) -> None:
    """Whether an adapter says itself that it cannot pass on what arrives."""
    for name, facts in sorted(case.measurements.names(link.device).items()):
        last = facts[-1]
        waits = name.startswith("outbound_pci_stalled") and isinstance(last.fact, Gauge)
        if waits and isinstance(last.fact, Gauge) and last.fact.value >= STALLED_PERCENT:
            link.add(0.5, f"it waits for PCIe {last.fact.value:.0f}% of the time", last)
            link.slowed = True
    since = (case.since or case.now) - timedelta(seconds=BEFORE_S)
    for priority in range(8):
        rise = case.measurements.rise(link.device, f"tx_prio{priority}_pause", since)
        if rise.facts and rise.per_s >= 10.0:
            link.add(0.3, "it tells its switch to stop", rise.facts[-1])
            link.slowed = True
            break


def _weighed(case: Case, link: Link, seen: Lateness, *, late: bool) -> Finding:
    """A link is to blame as far as what it slows down is what the job waits for."""
    ranks = ranks_on(case, link.device)
    adapter = link.device.startswith("nic:")
    if adapter:
        fits = 1.0 if seen.in_network or (link.slowed and not seen.late) else NOT_LATE if seen.late else UNKNOWN_LATE
    else:
        fits = 1.0 if late else UNKNOWN_LATE if not seen.known else NOT_LATE
    score = min(0.97, link.score) * fits
    evidence = list(link.evidence)
    if late:
        for rank in sorted(set(ranks) & seen.late.keys())[:2]:
            who = seen.late[rank]
            words = f"rank {rank} on it is late: its own work takes {who.extra_ms:.0f} ms longer"
            evidence.append(cite(who.told[-1], words, who.sure, case.rank_component(rank)))
            score = min(0.97, 1.0 - (1.0 - score) * (1.0 - 0.5 * who.sure))
    what = "what arrives from the network waits in the adapter" if adapter else "its rank is late with every batch"
    return Finding(
        fault_class=FaultClass.PCIE,
        component=link.device,
        score=score,
        evidence=tuple(evidence[:12]),
        engine=ENGINE,
        ranks=ranks,
        host=host_of(link.device),
        explains=symptoms_of(case),
        because=f"{link.words[0]}: {what}",
        decisive=fits >= 1.0,
        hardware=True,
        action=Action(
            kind=ActionKind.CORDON_AT_CHECKPOINT,
            target=link.device,
            reason="the job goes on, only slower: move away at the next checkpoint; the slot or riser has to be reseated",
        ),
    )


# --------------------------------------------------------------------------------------------------------------- lost


def _lost(case: Case) -> Iterable[Finding]:
    """Uncorrected errors at a device under a job that stands still (or that nobody uses)."""
    told = by_component(case, (each for each in events(case, EventName.AER) if each[1].attrs.get("severity") in LOST))
    counted = _counted(case)
    for device in sorted(told.keys() | counted.keys()):
        if not device.startswith(("gpu:", "nic:")) or case.topology.carries_traffic(device) is False:
            continue
        seen, rises = told.get(device, []), counted.get(device, {})
        words = "its own table of errors says so, too" if seen else "its own table counts errors that it could not correct"
        finding = device_finding(
            case,
            device,
            seen,
            fault_class=FaultClass.PCIE,
            engine=ENGINE,
            score=max([LOST[event.attrs["severity"]] for _, event in seen] or [LOST_COUNTERS[name] for name in rises]),
            why=_why,
            because="transactions over its PCIe link are lost, so its process waits for what never comes",
            action=Action(
                kind=ActionKind.SWAP_NODE,
                target=device,
                reason="what went over its PCIe link is lost: continue on a spare node, and have the slot looked at",
            ),
            more=tuple(cite(each, words, 0.4 if seen else LOST_COUNTERS[name], device) for name, each in rises.items()),
        )
        if finding is not None:
            yield finding


def _why(event: Event) -> str:
    return f"the PCIe bus reports an error that it could not correct ({event.attrs['severity']})"


def _counted(case: Case) -> dict[ComponentId, dict[str, Observed]]:
    """The devices of the job at which uncorrected errors were counted since shortly before it stands still, with the newest
    word of each counter. The kernel keeps these counts for each device, whoever has read its log."""
    if case.stalled_since is None:
        return {}
    since = case.stalled_since - timedelta(seconds=COUNTED_BEFORE_S)
    found: dict[ComponentId, dict[str, Observed]] = {}
    for device in (*gpus_of_job(case), *nics_of_job(case)):
        names = case.measurements.names(device)
        for name in LOST_COUNTERS:
            if name in names and (rise := case.measurements.rise(device, name, since)).facts:
                found.setdefault(device, {})[name] = rise.facts[-1]
    return found
