"""A look at sums that are kept up to date finds what a look at all flows finds, number for number."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goodput_common.contracts.ids import ComponentKind
from goodput_common.contracts.telemetry import Probe
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.localise.answer import Localised, localise
from goodput_correlator.domain.localise.bayes import bayes
from goodput_correlator.domain.localise.crossings import Crossings
from goodput_correlator.domain.localise.greedy import greedy
from goodput_correlator.domain.localise.likelihood import _Fit, _Search, likelihood
from goodput_correlator.domain.localise.look import look
from goodput_correlator.domain.localise.matrix import Matrix
from goodput_correlator.domain.localise.memory import ProbeMemory
from goodput_correlator.domain.localise.pick import Pick, Variant
from goodput_correlator.domain.localise.reports import Windows
from goodput_correlator.domain.localise.voting import voting
from goodput_topology.generate import h100_pod
from goodput_topology.graph import Fabric

AT = datetime(2026, 3, 1, tzinfo=UTC)
FABRICS = (h100_pod(hosts=3, pods=3, rails=2, spines=3), h100_pod(hosts=5, pods=2, rails=1, spines=2))
TROUBLES = ("none", "loss", "loss", "delay", "slow", "slow and loss")


def told(fabric: Fabric, rng: random.Random, seconds: int) -> list[Observed]:
    """Reports of a random fabric: some ways unknown, some reports late or lost, some flows that come and go."""
    nics = [nic for nic in fabric.of_kind(ComponentKind.NIC) if fabric.link_of(nic) is not None]
    broken = rng.sample(sorted(each for each in fabric.components if each.startswith(("link:", "switch:", "nic:"))), 2)
    rate, noise = rng.choice((0.02, 0.3, 1.0)), rng.choice((0.0, 0.01))
    trouble, slow = rng.choice(TROUBLES), f"nic:{rng.choice(fabric.hosts())}/"
    unknown, every = rng.choice((0.0, 0.3, 1.0)), rng.choice((1, 5, 7, 15))
    seen: list[Observed] = []
    for number in range(rng.randint(2, 60)):
        prober, target = rng.sample(nics, 2)
        out, back = rng.choice(fabric.path(prober, target).listed), rng.choice(fabric.path(target, prober).listed)
        known = rng.random() >= unknown
        begins, ends = (0, seconds) if rng.random() < 0.7 else sorted(rng.sample(range(seconds), 2))
        for second in range(begins + number % every, ends, every):
            if rng.random() < 0.1:
                continue
            sent = rng.randint(1, 20)
            bad = "loss" in trouble and set(broken) & {*out, *back}
            lost = sum(rng.random() < (rate if bad else noise) for _ in range(sent))
            busy = "slow" in trouble and target.startswith(slow)
            responder = rng.uniform(8_000, 40_000) if busy or rng.random() < 0.01 else rng.uniform(20, 60)
            network = 900.0 if trouble == "delay" and broken[0] in (*out, *back) else rng.uniform(8, 14)
            at = AT + timedelta(seconds=second)
            fact = Probe(
                component=prober, target=target, flow=number % 40, observed_at=at, interval_s=float(every),
                sent=sent, lost=lost, late=rng.randint(0, sent - lost) if rng.random() < 0.03 else 0,
                path=out[1:-1] if known else (), answer_path=back[1:-1] if known else (),
                network_us_p50=network, network_us_p99=rng.choice((2.0, 30.0)) * network,
                responder_us_p50=responder, responder_us_p99=3 * responder, prober_us_p50=rng.uniform(10, 30),
            )  # fmt: skip
            came = at + timedelta(seconds=0.1 if rng.random() < 0.9 else rng.uniform(0.1, 15.0))
            seen.append(Observed(f"{number}@{second}", prober.split(":")[1].split("/")[0], "probes", at, came, fact))
    return sorted(seen, key=lambda each: each.order)


@given(
    st.integers(0, 1 << 32), st.sampled_from(FABRICS), st.sampled_from([likelihood, likelihood, greedy, voting, bayes]),
    st.sampled_from(["learns at once", "learns late", "changes"]),
)  # fmt: skip
@settings(max_examples=15, deadline=None)
def test_a_look_at_sums_finds_what_a_look_at_all_flows_finds(seed: int, fabric: Fabric, variant: Variant, how: str) -> None:
    rng = random.Random(seed)
    seconds = rng.choice((20, 60, 150))
    windows, crossings = Windows(), Crossings(fabric)
    if how != "learns late":
        windows.learner = crossings
    looks = sorted(rng.uniform(5, seconds + 80) for _ in range(rng.randint(1, 6)))
    seen, at = told(fabric, rng, seconds), 0
    for look_s in looks:
        asked_s = (AT + timedelta(seconds=look_s)).timestamp()
        while at < len(seen) and seen[at].received_at.timestamp() <= asked_s:
            windows.fold(seen[at])
            at += 1
        if how == "changes" and rng.random() < 0.3:
            crossings = Crossings(fabric)
        windows.learner = crossings
        if rng.random() < 0.2:
            windows.forget(asked_s)
        plain = localise(windows.gathered(asked_s), fabric, variant)
        assert look(windows, crossings, asked_s, variant) == plain


class Eager(_Search):
    """Fits every component, whatever it can gain at most."""

    def _judged(self, at: int) -> _Fit:
        return self._fit(at)


def eager(matrix: Matrix) -> list[Pick]:
    search = Eager(matrix)
    search.run()
    return search.picks()


@given(st.integers(0, 1 << 32), st.sampled_from(FABRICS))
@settings(max_examples=15, deadline=None)
def test_components_that_cannot_gain_enough_are_passed_over_without_consequence(seed: int, fabric: Fabric) -> None:
    rng, windows = random.Random(seed), Windows(ended=True)
    for each in told(fabric, rng, 60):
        windows.fold(each)
    gathered = windows.gathered(0.0)
    assert localise(gathered, fabric, likelihood) == localise(gathered, fabric, eager)


def test_what_was_read_and_is_added_to_afterwards_is_read_again() -> None:
    fabric = FABRICS[0]
    seen = told(fabric, random.Random(5), 60)
    windows, crossings = Windows(), Crossings(fabric)
    windows.learner = crossings
    asked_s = (AT + timedelta(seconds=80)).timestamp()
    for each in seen[::2]:
        windows.fold(each)
    look(windows, crossings, asked_s)
    for each in seen[1::2]:  # as if they had been received before, and were delivered late
        windows.fold(each)
    assert look(windows, crossings, asked_s) == localise(windows.gathered(asked_s), fabric)


def test_a_quiet_minute_is_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    fabric, memory = FABRICS[0], ProbeMemory(FABRICS[0])
    nics = list(fabric.of_kind(ComponentKind.NIC))
    for number, target in enumerate(nics[1:]):
        fact = Probe(component=nics[0], target=target, flow=number, observed_at=AT, interval_s=5.0, sent=10)
        memory.fold(Observed(f"{number}", "h0", "probes", AT, AT, fact))

    def dear(*given: object, **named: object) -> None:
        raise AssertionError("nothing is lost: there is nothing to work out")

    monkeypatch.setattr(Crossings, "matrix", dear)
    monkeypatch.setattr(Crossings, "take", dear)
    found = memory.localised(AT + timedelta(seconds=11), fabric)
    assert found == Localised(flows=len(nics) - 1, sent=10 * (len(nics) - 1))
