"""Probes name the component that loses or delays them, and nobody else."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from goodput_common.contracts.ids import ComponentKind
from goodput_common.contracts.telemetry import Probe
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.localise import counted as counted_
from goodput_correlator.domain.localise import reports
from goodput_correlator.domain.localise.answer import Localised, Suspect, Trouble, localise
from goodput_correlator.domain.localise.bayes import bayes
from goodput_correlator.domain.localise.greedy import greedy
from goodput_correlator.domain.localise.likelihood import likelihood
from goodput_correlator.domain.localise.memory import ProbeMemory
from goodput_correlator.domain.localise.pick import Variant
from goodput_correlator.domain.localise.reports import Windows, gather
from goodput_correlator.domain.localise.voting import voting
from goodput_correlator.domain.probed import evidence, localised, suspects, suspects_at
from goodput_topology.generate import h100_pod
from goodput_topology.graph import Fabric

AT = datetime(2026, 3, 1, tzinfo=UTC)
NOW = AT + timedelta(seconds=30)
FABRIC = h100_pod(hosts=6, pods=3, rails=2, spines=3)
NICS = [nic for nic in FABRIC.of_kind(ComponentKind.NIC) if FABRIC.link_of(nic) is not None]
UPLINK = next(link for link in FABRIC.of_kind(ComponentKind.LINK) if "leaf-p1-r0" in link and "spine-2" in link)
LEAF, DEAD = "switch:leaf-p1-r0", "nic:h7/mlx5_0/1"
Loses = Callable[[tuple[str, ...]], float]


def mesh(
    loses: Loses, *, seed: int = 1, known: bool = True, sent: int = 60, slow: str = "", congested: str = ""
) -> list[Observed]:
    """Two reports a flow, of eight flows an adapter to others of its rail; `loses` is the share that a way loses."""
    rng, seen = random.Random(seed), []
    for nic in NICS:
        rail = FABRIC.attr(nic, "rail")
        targets = [each for each in NICS if each != nic and FABRIC.attr(each, "rail") == rail]
        for flow, target in enumerate(rng.sample(targets, 8)):
            out, back = rng.choice(FABRIC.path(nic, target).listed), rng.choice(FABRIC.path(target, nic).listed)
            passes = (1 - loses(out)) * (1 - loses(back))
            for window in range(2):
                lost = sum(rng.random() > passes for _ in range(sent // 2)) if passes < 1 else 0
                heard = lost < sent // 2
                ends = AT + timedelta(seconds=5 * window)
                answers = 9_000.0 if target.startswith(f"nic:{slow}/") else rng.uniform(20, 60)
                network = 900.0 if congested and congested in out + back else rng.uniform(8, 14)
                probe = Probe(
                    component=nic, target=target, flow=flow, observed_at=ends, interval_s=5.0, sent=sent // 2, lost=lost,
                    path=out[1:-1] if known else (), answer_path=back[1:-1] if known else (),
                    network_us_p50=network if heard else -1.0, network_us_p99=2 * network if heard else -1.0,
                    responder_us_p50=answers if heard else -1.0, responder_us_p99=3 * answers if heard else -1.0,
                )  # fmt: skip
                host = nic.split(":")[1].split("/")[0]
                seen.append(Observed(f"{nic}-{flow}#{window}", host, "probes", ends, ends, probe))
    return seen


def at(component: str, rate: float) -> Loses:
    return lambda way: rate if component in way else 0.0


def found(seen: Sequence[Observed], variant: Variant = likelihood) -> Localised:
    return localise(gather(seen, NOW), FABRIC, variant)


def named(answer: Localised) -> list[tuple[str, Trouble]]:
    return [(each.component, each.trouble) for each in answer.suspects]


@pytest.mark.parametrize("variant", [greedy, voting, bayes, likelihood])
def test_nobody_is_named_where_nothing_is_lost(variant: Variant) -> None:
    answer = found(mesh(lambda way: 0.0), variant)
    assert answer.suspects == ()
    assert (answer.flows, answer.lost, answer.lost_unexplained) == (len(NICS) * 8, 0, 0)


@pytest.mark.parametrize("variant", [greedy, bayes, likelihood])
@pytest.mark.parametrize("component", [DEAD, LEAF, UPLINK, "switch:spine-1"])
def test_the_dead_component_is_named_alone(component: str, variant: Variant) -> None:
    answer = found(mesh(at(component, 1.0)), variant)
    assert component in (answer.suspects[0].component, *answer.suspects[0].same)
    assert {each.component for each in answer.suspects} == {answer.suspects[0].component}
    assert answer.lost_unexplained == pytest.approx(0.0, abs=0.01 * answer.lost)


def test_votes_name_a_dead_leaf() -> None:
    assert found(mesh(at(LEAF, 1.0)), voting).suspects[0].component == LEAF


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.3, 1.0])
def test_a_lossy_link_between_switches_is_named_at_any_rate(rate: float) -> None:
    (only,) = found(mesh(at(UPLINK, rate), sent=120)).suspects
    assert (only.component, only.trouble, only.into) == (UPLINK, Trouble.LOSS, None)


def test_a_dead_adapter_is_told_from_its_host_its_leaf_and_its_neighbours() -> None:
    (only,) = found(mesh(at(DEAD, 1.0))).suspects
    assert only.component == DEAD
    assert only.same == (FABRIC.link_of(DEAD),)  # an adapter and its cable lose the same probes
    assert only.rate == pytest.approx(1.0)
    assert only.flows == only.flows_in_all


def test_a_host_whose_adapters_are_all_dead_is_named_and_not_each_adapter() -> None:
    dead = "nic:h7/"
    answer = found(mesh(lambda way: 1.0 if way[0].startswith(dead) or way[-1].startswith(dead) else 0.0))
    assert named(answer) == [("host:h7", Trouble.LOSS)]


def test_a_link_that_loses_one_way_only_is_named_with_the_direction() -> None:
    into = next(end for end in FABRIC.ends_of(UPLINK) or () if "spine" in end)
    one_way = lambda way: 0.3 if UPLINK in way and way[way.index(UPLINK) + 1] == into else 0.0  # noqa: E731
    (only,) = found(mesh(one_way)).suspects
    assert (only.component, only.into) == (UPLINK, into)


def test_two_faults_under_one_leaf_are_two_suspects_and_not_the_leaf() -> None:
    other = "nic:h9/mlx5_0/1"
    answer = found(mesh(lambda way: 1.0 if {DEAD, other} & set(way) else 0.0))
    assert {each.component for each in answer.suspects} == {DEAD, other}


def test_a_switch_that_drops_some_flows_whole_is_named_and_none_of_its_links() -> None:
    rng = random.Random(5)
    answer = found(mesh(lambda way: 1.0 if LEAF in way and rng.random() < 0.3 else 0.0))
    assert named(answer)[0] == (LEAF, Trouble.LOSS)


def test_a_slow_host_is_never_called_network() -> None:
    answer = found(mesh(lambda way: 0.05 if way[-1].startswith("nic:h3/") else 0.0, slow="h3"))
    (only,) = answer.suspects
    assert (only.component, only.trouble) == ("host:h3", Trouble.SLOW_RESPONDER)
    assert only.delay_us > 5 * only.usual_us


def test_a_lossy_link_is_found_beside_a_slow_host() -> None:
    answer = found(mesh(at(UPLINK, 0.3), slow="h3"))
    assert set(named(answer)) == {("host:h3", Trouble.SLOW_RESPONDER), (UPLINK, Trouble.LOSS)}


def test_a_link_that_only_delays_is_named_for_its_delay() -> None:
    assert named(found(mesh(lambda way: 0.0, congested=UPLINK)))[0] == (UPLINK, Trouble.DELAY)


def test_without_paths_the_adapter_and_the_leaf_are_still_found() -> None:
    for component in (DEAD, LEAF):
        first = found(mesh(at(component, 1.0), known=False)).suspects[0]
        assert component in (first.component, *first.same)


def test_without_paths_the_links_that_cannot_be_told_apart_share_the_blame() -> None:
    first = found(mesh(at(UPLINK, 1.0), known=False)).suspects[0]
    assert UPLINK in (first.component, *first.same)
    assert len(first.same) == 2  # the other two uplinks of that leaf


@given(st.randoms(use_true_random=False))
@settings(max_examples=6, deadline=None)
def test_the_order_of_reports_makes_no_difference(rng: random.Random) -> None:
    seen = mesh(at(UPLINK, 0.1))
    shuffled = list(seen)
    rng.shuffle(shuffled)
    assert found(shuffled) == found(seen)


@given(st.sets(st.integers(0, 63), max_size=40), st.sampled_from([greedy, voting, bayes, likelihood]))
@settings(max_examples=6, deadline=None)
def test_doubled_reports_make_no_difference(doubled: set[int], variant: Variant) -> None:
    seen = mesh(at(LEAF, 0.2))
    again = [Observed(f"again-{n}", seen[n].host, "probes", seen[n].observed_at, NOW, seen[n].fact) for n in sorted(doubled)]
    assert named(found(seen + again, variant)) == named(found(seen, variant))


def test_the_same_minute_told_twice_over_changes_weights_and_no_rank() -> None:
    seen = mesh(at(UPLINK, 0.2))
    later = [
        Observed(
            f"{each.id}-later", each.host, "probes", each.observed_at + timedelta(seconds=10),
            each.received_at + timedelta(seconds=10),
            msgspec.structs.replace(each.fact, observed_at=each.observed_at + timedelta(seconds=10)),
        )
        for each in seen
    ]  # fmt: skip
    once, twice = found(seen), found(seen + later)
    assert named(once) == named(twice)
    assert twice.suspects[0].explains == pytest.approx(2 * once.suspects[0].explains, rel=0.02)


COMPONENTS = st.one_of(
    st.sampled_from(sorted(FABRIC.components)),
    st.text(max_size=30),
    st.sampled_from(["link:a--b", "link:", "port:x/y", "switch:", "nic:h", "host:h0", "rank:j/0", "nic:h0/mlx5_0/1"]),
)
COUNTS = st.integers(-3, 60)
DELAYS = st.one_of(st.just(-1.0), st.floats(allow_nan=True, allow_infinity=True))


@given(
    st.lists(
        st.builds(
            Probe, component=COMPONENTS, target=COMPONENTS, flow=st.integers(0, 5),
            observed_at=st.sampled_from([AT, AT + timedelta(seconds=5), AT - timedelta(days=40)]),
            interval_s=st.sampled_from([0.0, 5.0]), sent=COUNTS, lost=COUNTS, late=COUNTS,
            path=st.lists(COMPONENTS, max_size=8).map(tuple), answer_path=st.lists(COMPONENTS, max_size=8).map(tuple),
            network_us_p50=DELAYS, network_us_p99=DELAYS, responder_us_p50=DELAYS, responder_us_p99=DELAYS,
            prober_us_p50=DELAYS, prober_us_p99=DELAYS,
        ),
        max_size=12,
    ),
    st.sampled_from([greedy, voting, bayes, likelihood]),
)  # fmt: skip
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_report_whatever_its_path_and_counts_is_too_odd(probes: list[Probe], variant: Variant) -> None:
    seen = [Observed(f"m#{n}", "h0", "probes", each.observed_at, AT, each) for n, each in enumerate(probes)]
    answer = localise(gather(seen, NOW), FABRIC, variant)
    assert all(0 <= each.score <= 1 and 0 <= each.rate <= 1 for each in answer.suspects)
    assert 0 <= answer.lost_unexplained <= answer.lost


def test_a_window_is_judged_only_after_its_grace() -> None:
    (first, *_) = mesh(lambda way: 0.0)
    assert gather([first], AT + timedelta(seconds=5)).waiting == 1
    closed = gather([first], AT + timedelta(seconds=10.1))
    assert (closed.waiting, closed.reports) == (0, 1)


def test_a_report_that_comes_after_the_grace_is_counted_and_used() -> None:
    seen = mesh(lambda way: 0.0)
    late = Observed("late", seen[0].host, "probes", seen[0].observed_at, AT + timedelta(seconds=20), seen[0].fact)
    answer = gather([late, *seen[1:]], NOW)
    assert (answer.came_late, answer.reports) == (1, len(seen))


def test_a_host_clock_that_is_off_moves_no_report_to_another_window() -> None:
    seen = mesh(lambda way: 0.0)
    behind = timedelta(seconds=2)
    shifted = [Observed(e.id, e.host, e.source, e.observed_at - behind, e.received_at, e.fact) for e in seen]
    for now_s in (7.0, 11.0, 16.0):
        now = AT + timedelta(seconds=now_s)
        assert gather(shifted, now).waiting == gather(seen, now).waiting


def test_reports_older_than_the_look_back_do_not_count() -> None:
    assert gather(mesh(lambda way: 0.0), AT + timedelta(minutes=10)).flows == ()
    assert gather(mesh(lambda way: 0.0), AT + timedelta(minutes=10), ended=True).reports == len(NICS) * 16


def folded(seen: Sequence[Observed]) -> ProbeMemory:
    memory = ProbeMemory()
    for each in sorted(seen, key=lambda o: o.order):
        memory.fold(each)
    return memory


def report(at_s: float, *, flow: int = 0, received_s: float | None = None, lost: int = 0) -> Observed:
    """Ends `at_s` after the start."""
    fact = Probe(
        component=NICS[0], target=NICS[1], flow=flow, observed_at=AT + timedelta(seconds=at_s), interval_s=1.0, sent=10,
        lost=lost, responder_us_p50=at_s,
    )  # fmt: skip
    received = AT + timedelta(seconds=at_s if received_s is None else received_s)
    return Observed(f"{flow}@{at_s}", "h0", "probes", fact.observed_at, received, fact)


def test_flows_that_find_no_room_are_counted_and_room_is_made_when_others_fall_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reports, "FLOWS_MAX", 3)
    memory = folded([report(1.0, flow=n) for n in range(5)])
    assert (memory.flows, memory.dropped) == (3, 2)
    memory.forget(AT + timedelta(seconds=40))
    assert memory.flows == 3
    memory.forget(AT + timedelta(seconds=90))
    assert memory.flows == 0
    memory.fold(report(91.0, flow=4))
    assert (memory.flows, memory.dropped) == (1, 2)


def test_what_is_kept_of_a_flow_does_not_grow_with_its_reports() -> None:
    windows = Windows()
    for second in range(1, 600):
        windows.fold(report(float(second), lost=second % 2))
    ((counted,),) = windows._flows.values()
    assert len(counted.rows) / counted_._WIDTH <= windows.policy.windows + 3
    assert len(counted.bad) <= counted_.BAD_KEPT and len(counted.slow) <= counted_.SLOW_KEPT


@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 40), st.integers(0, 10)), max_size=60, unique_by=lambda e: e[0])
)
@settings(max_examples=80, deadline=None)
def test_a_flow_adds_up_to_its_reports_of_the_last_minute(told: list[tuple[int, int, int]]) -> None:
    seen = [report(-40)] + [report(at_s, received_s=at_s + late_s / 10, lost=lost) for at_s, late_s, lost in told]
    now_s = 101.0  # the window that ended at 95 is the newest that is over for the grace
    found = gather(seen, AT + timedelta(seconds=now_s))
    counting = [(at_s, lost) for at_s, _, lost in told if 35 <= at_s < 95]
    assert found.reports == len(counting)
    for flow in found.flows:
        assert (flow.sent, flow.lost) == (10 * len(counting), sum(lost for _, lost in counting))
        assert flow.responder_us_p50 == max(at_s for at_s, _ in counting)
    assert bool(found.flows) == bool(counting)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 200), st.integers(0, 10)), max_size=40), st.integers(0, 100))
@settings(max_examples=80, deadline=None)
def test_a_closed_window_never_changes_again(told: list[tuple[int, int, int]], asked_s: int) -> None:
    seen = sorted(
        (report(at_s, flow=n % 3, received_s=at_s + late_s / 10, lost=lost) for n, (at_s, late_s, lost) in enumerate(told)),
        key=lambda each: each.order,
    )
    asked = AT + timedelta(seconds=asked_s)
    windows = Windows()
    for each in seen:
        if each.received_at <= asked:
            windows.fold(each)
    then = windows.gathered(asked.timestamp())
    later_s = 5.0 * (then.closed + 3) - 0.5  # short of the moment at which the next one is closed
    for each in seen:
        if asked < each.received_at and each.received_at.timestamp() <= later_s:
            windows.fold(each)
    after = windows.gathered(later_s)
    assert (after.closed, after.flows, after.reports) == (then.closed, then.flows, then.reports)


def test_a_spool_that_is_read_out_at_last_says_nothing_of_now() -> None:
    seen = [report(1.0, received_s=1.5), report(2.0, received_s=300.0, lost=9), report(301.0)]
    (flow,) = gather(seen, AT + timedelta(seconds=320)).flows
    assert (flow.sent, flow.lost) == (10, 0)


def test_jobs_that_ask_for_the_same_window_get_the_same_answer_worked_out_once() -> None:
    memory = folded(mesh(at(UPLINK, 0.3)))
    asked = NOW + timedelta(seconds=1)
    first = memory.localised(asked, FABRIC)
    assert memory.localised(asked + timedelta(seconds=3), FABRIC) is first
    assert memory.localised(asked + timedelta(seconds=5), FABRIC) is not first
    moved = h100_pod(hosts=6, pods=3, rails=2, spines=3)
    assert memory.localised(asked, moved) == first


def case(seen: Sequence[Observed], fabric: Fabric = FABRIC, *, probes: ProbeMemory | None = None) -> Case:
    ordered = tuple(sorted(seen, key=lambda o: o.order))
    return Case(now=NOW, fabric="f", job="j", observed=ordered, topology=fabric, probes=probes)


def test_engines_get_suspects_of_a_component_with_evidence_that_exists() -> None:
    seen = mesh(at(UPLINK, 0.3))
    told = case(seen)
    port = next(end for end in FABRIC.ends_of(UPLINK) or ())
    (suspect,) = suspects_at(told, port)
    assert isinstance(suspect, Suspect)
    assert suspects_at(told, UPLINK) == suspects(told) == (suspect,)
    assert suspects_at(told, DEAD) == ()
    lines = evidence(suspect, 0.7)
    assert lines
    by_id = {each.id: each.fact for each in seen}
    for line in lines:
        fact = by_id[line.event_id]
        assert isinstance(fact, Probe)
        assert fact.lost > 0
        assert UPLINK in fact.path + fact.answer_path


def test_reports_that_the_fabric_remembers_count_as_those_of_the_case() -> None:
    seen = mesh(at(UPLINK, 0.3))
    memory = folded(seen)
    assert suspects(case((), probes=memory)) == suspects(case(seen)) == suspects(case(seen, probes=memory))


def test_a_case_without_probes_accuses_nobody() -> None:
    assert localised(case(())).sent == 0
    assert suspects(case(())) == ()
