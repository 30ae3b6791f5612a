"""Localisation from lost probes: which of the four variants names the right component, on fabrics with planted faults.

    python bench/localise.py [--seeds 20] [--results FOLDER]

Three fabrics of 1,024 adapters (rail-optimised, fat tree, hosts with two adapters). A case is one minute of probes on one of
them: ten flows an adapter (four to neighbours under its leaf, six to other leaves), one probe a second each, each flow on an
equal-cost way of its own. Drawn a case: noise (one probe in 10,000 to 100,000 is lost anywhere), lost reports (0, 10 or
20%), flows whose way nobody knows (0 or 30%). Faults are planted by this file alone; it takes nothing from the variants.

A suspect is right when the faulty component is it or among those that probes cannot tell from it; `top1_exact` asks for the
component itself. `precision`, `recall`: over all suspects named, all faults planted. `all_right`: cases without a mistake.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from _report import Report

from goodput_common.contracts.ids import ComponentKind, host_of
from goodput_common.contracts.telemetry import Probe
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.localise.answer import Localised, Trouble, answer, prepare
from goodput_correlator.domain.localise.bayes import bayes
from goodput_correlator.domain.localise.counted import Flow
from goodput_correlator.domain.localise.greedy import greedy
from goodput_correlator.domain.localise.likelihood import likelihood
from goodput_correlator.domain.localise.memory import ProbeMemory
from goodput_correlator.domain.localise.pick import Variant
from goodput_correlator.domain.localise.reports import Gathered
from goodput_correlator.domain.localise.voting import voting
from goodput_topology.generate import h100_pod
from goodput_topology.graph import Fabric

VARIANTS: dict[str, Variant] = {"greedy": greedy, "voting": voting, "bayes": bayes, "likelihood": likelihood}
UNDER_THE_LEAF, TO_OTHER_LEAVES = 4, 6
PROBES_A_REPORT, REPORTS = 15, 4  # a report every 15 s
WINDOWS = 8  # of 15 s, at scale
FABRICS: dict[str, Callable[[], Fabric]] = {
    "rail": lambda: h100_pod(hosts=16, pods=8, rails=8, spines=8),
    "fat_tree": lambda: h100_pod(hosts=32, pods=32, rails=1, spines=8),
    "two_nic": lambda: h100_pod(hosts=16, pods=32, rails=2, spines=8),
}
Way = tuple[str, ...]


@dataclass(frozen=True)
class Fault:
    """`rate` of the probes that cross `component` (towards `into` only, if given) are lost; `by_flow`: all probes of so many
    flows; `slow`: its host answers late and loses some."""

    component: str
    rate: float
    into: str = ""
    by_flow: bool = False
    slow: bool = False


@dataclass
class Plan:
    """A fabric with its pinglist: pairs of adapters and the ways between them."""

    fabric: Fabric
    nics: list[str] = field(default_factory=list)
    pairs: list[tuple[str, str, tuple[Way, ...], tuple[Way, ...]]] = field(default_factory=list)
    uplinks: list[str] = field(default_factory=list)
    leaves: list[str] = field(default_factory=list)
    spines: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls, fabric: Fabric, seed: int, *, near: int = UNDER_THE_LEAF, far: int = TO_OTHER_LEAVES, ways: int = 64
    ) -> Plan:
        rng = random.Random(f"pinglist {seed}")
        plan = cls(fabric)
        by_leaf: dict[str, list[str]] = {}
        for nic in fabric.of_kind(ComponentKind.NIC):
            if (leaf := fabric.switch_of(nic)) is not None:
                by_leaf.setdefault(leaf, []).append(nic)
                plan.nics.append(nic)
        rails: dict[str, list[str]] = {}
        for leaf in by_leaf:
            rails.setdefault(fabric.attr(leaf, "rail"), []).append(leaf)
        for leaf, nics in by_leaf.items():
            others = [each for each in rails[fabric.attr(leaf, "rail")] if each != leaf]
            for at, nic in enumerate(nics):
                targets = [nics[(at + step) % len(nics)] for step in range(1, near + 1)]
                targets += [rng.choice(by_leaf[rng.choice(others)]) for _ in range(far)]
                for target in targets:
                    out, back = (fabric.path(*ends, limit=ways).listed for ends in ((nic, target), (target, nic)))
                    plan.pairs.append((nic, target, out, back))
        plan.leaves = list(by_leaf)
        plan.spines = [each for each in fabric.of_kind(ComponentKind.SWITCH) if each not in by_leaf]
        plan.uplinks = [each for leaf in plan.leaves for each in fabric.links_of_switch(leaf) if "nic:" not in each]
        return plan


def planted(kind: str, plan: Plan, rng: random.Random) -> list[Fault]:
    fabric = plan.fabric
    name, _, number = kind.partition(" ")
    rate = float(number.rstrip("%")) / 100 if number else 1.0
    if name == "uplink":
        return [Fault(rng.choice(plan.uplinks), rate)]
    if name == "cable":
        return [Fault(fabric.link_of(rng.choice(plan.nics)) or "", rate)]
    if name == "one_way":
        link = rng.choice(plan.uplinks)
        return [Fault(link, rate, into=rng.choice(fabric.ends_of(link) or ("", "")))]
    if name == "nic":
        return [Fault(rng.choice(plan.nics), rate)]
    if name == "leaf":
        return [Fault(rng.choice(plan.leaves), rate)]
    if name == "spine":
        return [Fault(rng.choice(plan.spines), rate)]
    if name == "silent_leaf":
        return [Fault(rng.choice(plan.leaves), 0.2, by_flow=True)]
    if name == "silent_spine":
        return [Fault(rng.choice(plan.spines), 0.2, by_flow=True)]
    if name == "host":
        return [Fault(f"host:{rng.choice(fabric.hosts())}", 1.0)]
    if name == "slow_host":
        return [Fault(f"host:{rng.choice(fabric.hosts())}", 0.05, slow=True)]
    if name in ("double", "triple"):
        found: list[Fault] = []
        while len(found) < (2 if name == "double" else 3):
            (one,) = planted(rng.choice(DOUBLED), plan, rng)
            if one.component not in {each.component for each in found}:
                found.append(one)
        return found
    if name == "double_under_leaf":
        leaf = rng.choice(plan.leaves)
        return [Fault(each, rng.choice((0.01, 0.1, 1.0))) for each in rng.sample(fabric.links_of_switch(leaf), 2)]
    return []


DOUBLED = ("uplink 1%", "uplink 10%", "uplink 100%", "cable 1%", "cable 10%", "nic", "leaf", "one_way 10%", "slow_host")
KINDS = (
    "healthy", "uplink 0.1%", "uplink 0.3%", "uplink 1%", "uplink 10%", "uplink 100%", "cable 0.1%", "cable 0.3%",
    "cable 1%", "cable 10%", "one_way 1%", "one_way 10%", "one_way 100%", "nic", "leaf", "leaf 1%", "spine", "spine 1%",
    "silent_leaf", "silent_spine", "host", "slow_host", "double", "triple", "double_under_leaf",
)  # fmt: skip
FEW = {"fat_tree": ("host",)}  # with one adapter a host, a dead host is a dead adapter


def crosses(path: Way, fault: Fault, ends: tuple[str, str]) -> bool:
    if fault.component.startswith("host:"):
        own = f"nic:{fault.component[5:]}/"
        return ends[0].startswith(own) or ends[1].startswith(own)
    if fault.component not in path:
        return False
    return not fault.into or path[path.index(fault.component) + 1] == fault.into


def drawn(n: int, rate: float, rng: random.Random) -> int:
    if rate >= 1:
        return n
    if rng.random() < (1 - rate) ** n:
        return 0
    while True:  # at least one
        lost = sum(rng.random() < rate for _ in range(n))
        if lost:
            return lost


def minute(plan: Plan, faults: Sequence[Fault], rng: random.Random, *, unknown: float | None = None) -> tuple[Flow, ...]:
    """What one minute of probes tells, joined by flow, in a random order of flows."""
    noise = 10 ** rng.uniform(-5, -4)
    reports_lost = rng.choice((0.0, 0.1, 0.2))
    unknown = rng.choice((0.0, 0.3)) if unknown is None else unknown
    flows = []
    for number, (prober, target, out, back) in enumerate(plan.pairs):
        told = sum(rng.random() >= reports_lost for _ in range(REPORTS))
        if not told:
            continue
        path, answer_path = rng.choice(out), rng.choice(back)
        passes = (1 - noise) ** 2
        responder_us, late = rng.lognormvariate(3.4, 0.3), 0
        for fault in faults:
            for way, ends in ((path, (prober, target)), (answer_path, (target, prober))):
                if fault.slow or not crosses(way, fault, ends):
                    continue
                if fault.by_flow:
                    passes *= 0.0 if rng.random() < fault.rate else 1.0
                else:
                    passes *= 1 - fault.rate
                if fault.component.startswith("host:"):
                    break  # once a round trip
            if fault.slow and target.startswith(f"nic:{fault.component[5:]}/"):
                responder_us = rng.lognormvariate(9.6, 0.4)
                passes *= 1 - fault.rate
                late = 1
        sent = told * PROBES_A_REPORT
        lost = drawn(sent, 1 - passes, rng)
        late = drawn(sent - lost, 0.3, rng) if late else 0
        heard = lost < sent
        known = rng.random() >= unknown
        flows.append(
            Flow(
                prober=prober, target=target, flow=49_152 + number % 16_384,
                path=path[1:-1] if known else (), answer_path=answer_path[1:-1] if known else (),
                sent=sent, lost=lost, late=late,
                network_us_p50=rng.uniform(8, 14) if heard else -1.0, network_us_p99=rng.uniform(15, 40) if heard else -1.0,
                responder_us_p50=responder_us if heard else -1.0, responder_us_p99=3 * responder_us if heard else -1.0,
                prober_us_p50=20.0 if heard else -1.0, prober_us_p99=60.0 if heard else -1.0,
            )
        )  # fmt: skip
    rng.shuffle(flows)
    return tuple(flows)


@dataclass
class Tally:
    cases: int = 0
    first_right: int = 0
    exact: int = 0
    named: int = 0
    named_right: int = 0
    faults: int = 0
    found: int = 0
    all_right: int = 0
    spent_s: list[float] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)

    def add(self, answered: Localised, faults: Sequence[Fault], spent_s: float, where: str) -> None:
        truth = {each.component for each in faults}
        right = [bool(truth & {each.component, *each.same}) for each in answered.suspects]
        if any(fault.slow for fault in faults):  # a slow host must not be called network
            slow = {fault.component for fault in faults if fault.slow}
            network = (Trouble.LOSS, Trouble.DELAY)
            right = [
                fine and not (each.trouble in network and each.component in slow)
                for fine, each in zip(right, answered.suspects, strict=True)
            ]
        named = {each for s, fine in zip(answered.suspects, right, strict=True) if fine for each in (s.component, *s.same)}
        found = len(truth & named)
        self.cases += 1
        self.first_right += bool(right and right[0]) if truth else not right
        self.exact += bool(right and right[0] and answered.suspects[0].component in truth) if truth else not right
        self.named += len(right)
        self.named_right += sum(right)
        self.faults += len(truth)
        self.found += found
        self.spent_s.append(spent_s)
        if found == len(truth) and all(right):
            self.all_right += 1
        else:
            said = [f"{s.component} {s.rate:.4f}" for s in answered.suspects[:4]]
            self.misses.append(f"{where}: planted {[(f.component, f.rate, f.into) for f in faults]}, named {said}")

    def figures(self) -> dict[str, float | int]:
        return {
            "cases": self.cases,
            "top1": _share(self.first_right, self.cases),
            "top1_exact": _share(self.exact, self.cases),
            "precision": _share(self.named_right, self.named),
            "recall": _share(self.found, self.faults),
            "all_right": _share(self.all_right, self.cases),
            "named_wrong": self.named - self.named_right,
            "median_cpu_s": round(statistics.median(self.spent_s), 3),
            "max_cpu_s": round(max(self.spent_s), 3),
        }


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 1.0


def cases(kinds: Sequence[str], seeds: int) -> Iterator[tuple[str, str, int]]:
    for name in FABRICS:
        for kind in kinds:
            if kind not in FEW.get(name, ()):
                for seed in range(seeds):
                    yield name, kind, seed


def compare(seeds: int, kinds: Sequence[str], unknown: float | None = None) -> dict[str, dict[str, Tally]]:
    """By variant and kind."""
    plans = {name: Plan.of(make(), 0) for name, make in FABRICS.items()}
    tallies: dict[str, dict[str, Tally]] = {each: {} for each in VARIANTS}
    for fabric, kind, seed in cases(kinds, seeds):
        rng = random.Random(f"{fabric} {kind} {seed}")
        faults = planted(kind, plans[fabric], rng)
        gathered = Gathered(flows=minute(plans[fabric], faults, rng, unknown=unknown))
        began = time.process_time()
        prepared = prepare(gathered, plans[fabric].fabric)
        prepare_s = time.process_time() - began
        for name, variant in VARIANTS.items():
            began = time.process_time()
            found = answer(prepared, variant)
            spent_s = time.process_time() - began + prepare_s
            for key in (kind, f"fabric {fabric}", "all"):
                tallies[name].setdefault(key, Tally()).add(found, faults, spent_s, f"{fabric} {kind} seed {seed}")
    return tallies


def at_scale(hosts: int) -> dict[str, float]:
    """A fabric of hosts with 8 adapters of 4 flows, told every 15 s for two minutes: from reports to suspects, as the
    service does it. `first`: what the first job in trouble waits for; `next`: the next window, with the ways known."""
    fabric = h100_pod(hosts=64, pods=-(-hosts // 64), rails=8, spines=8)
    plan = Plan.of(fabric, 1, near=1, far=3, ways=8)
    rng = random.Random(hosts)
    flows = minute(plan, planted("uplink 1%", plan, rng), rng, unknown=0.0)
    at = datetime(2026, 3, 1, tzinfo=UTC)
    memory, folding_s, before_mib = ProbeMemory(fabric), 0.0, _resident_mib()
    for window in range(WINDOWS):
        ends = at + timedelta(seconds=15 * window)
        for number, flow in enumerate(flows):
            # an object of its own each time, as it comes out of a message
            lost = min(PROBES_A_REPORT, max(0, flow.lost - PROBES_A_REPORT * (window % REPORTS)))
            probe = Probe(
                component=_anew(flow.prober), target=_anew(flow.target), flow=flow.flow, observed_at=ends, interval_s=15.0,
                sent=PROBES_A_REPORT, lost=lost, path=tuple(map(_anew, flow.path)),
                answer_path=tuple(map(_anew, flow.answer_path)), network_us_p50=flow.network_us_p50,
                network_us_p99=flow.network_us_p99, responder_us_p50=flow.responder_us_p50,
                responder_us_p99=flow.responder_us_p99,
            )  # fmt: skip
            seen = Observed(f"{number}#{window}", host_of(flow.prober) or "", "probes", ends, ends, probe)
            began = time.process_time()
            memory.fold(seen)
            folding_s += time.process_time() - began
    held_mib = _resident_mib() - before_mib
    now, asked_s = at + timedelta(seconds=15 * (WINDOWS - 1) + 11), []
    for turn in range(2):
        began = time.process_time()
        found = memory.localised(now + timedelta(seconds=5 * turn), fabric)
        asked_s.append(time.process_time() - began)
    return {
        "hosts": hosts,
        "adapters": len(plan.nics),
        "flows": found.flows,
        "reports": len(flows) * WINDOWS,
        "fold_cpu_us_a_report": round(1e6 * folding_s / len(flows) / WINDOWS, 2),
        "held_mib": round(held_mib, 1),
        "first_cpu_s": round(asked_s[0], 2),
        "next_cpu_s": round(asked_s[1], 2),
        "named": len(found.suspects),
    }


def _anew(text: str) -> str:
    return text.encode().decode()


def _resident_mib() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="cases of each kind and fabric")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--misses", type=int, default=0, help="print so many misses of each variant and kind")
    parser.add_argument("--dry", action="store_true", help="write no result")
    parser.add_argument("--results", type=Path, help="folder for the results; bench/results if not given")
    given = parser.parse_args()
    report = Report("localise", results=given.results)
    for known, unknown, kinds in (
        ("", None, given.kinds),
        ("no path known: ", 1.0, [each for each in given.kinds if each in UNKNOWN]),
    ):
        tallies = compare(given.seeds if unknown is None else max(1, given.seeds // 2), kinds, unknown) if kinds else {}
        for variant, of_variant in tallies.items():
            for kind, tally in of_variant.items():
                figures: dict[str, object] = dict(tally.figures())
                if tally.misses and kind == "all" and variant == "likelihood":
                    figures["missed"] = tally.misses[:40]
                report.add(f"{known}{variant}: {kind}", **figures)
                for miss in tally.misses[: given.misses] if kind in KINDS else ():
                    print("   ", miss)
        if not given.dry:
            report.write()  # what is measured is kept, whatever becomes of the rest
    for hosts in () if given.dry else (512, 1024, 2240):
        report.add(f"scale: {hosts} hosts", **at_scale(hosts))
        report.write()


UNKNOWN = ("healthy", "uplink 1%", "uplink 10%", "uplink 100%", "cable 1%", "nic", "leaf", "spine", "host", "double")

if __name__ == "__main__":
    main()
