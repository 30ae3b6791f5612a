"""Look-alikes show, end by themselves, and leave no entry in the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from goodput_common.contracts.job import RankExited, RankProgress, StallSuspected
from goodput_common.contracts.telemetry import (
    CollectorHeartbeat,
    Counter,
    CounterDoubt,
    Event,
    EventName,
    Sample,
    State,
    TelemetryBatch,
)
from goodput_faultlab.simulate import BenignSpec, Outgoing, Simulation, SimulationSpec, scenario
from goodput_faultlab.simulate.benign import BENIGN
from goodput_faultlab.testing import HOSTS, events, small_job, structs


def job(*kinds: str, at_s: float = 8.0) -> SimulationSpec:
    benign = tuple(BenignSpec(kind=kind, at_s=at_s) for kind in kinds)
    return replace(scenario("healthy", **HOSTS), benign=benign, noise=small_job().noise, switches=True)


def run(*kinds: str, seconds: float = 70.0) -> tuple[Simulation, list[Outgoing]]:
    simulation = Simulation(job(*kinds), 3)
    return simulation, simulation.advance(simulation.spec.start + timedelta(seconds=seconds))


def samples(out: list[Outgoing]) -> Iterator[Sample]:
    for batch in structs(out, TelemetryBatch):
        yield from batch.samples


@pytest.mark.parametrize("kind", BENIGN)
def test_a_look_alike_is_no_fault(kind: str) -> None:
    simulation, _ = run(kind)
    assert simulation.ledger == ()
    if kind == "job_end":
        return
    assert simulation.stalled_since is None and simulation.generation == 0
    assert simulation.step > 0.7 * 66 / simulation.spec.step_s, "the job goes on"


@pytest.mark.parametrize("kind", [each for each in BENIGN if each not in ("clock_jump", "uneven_data", "start_up")])
def test_a_look_alike_can_be_seen(kind: str) -> None:
    """Something is told that is not told without it, or is not told that would be."""
    plain, changed = ({each.id for each in run(*kinds)[1]} for kinds in ((), (kind,)))
    shown = [
        {(each.component, getattr(each, "name", ""), getattr(each, "value", "")) for each in samples(run(*kinds)[1])}
        for kinds in ((), (kind,))
    ]
    assert shown[0] != shown[1] or plain != changed


def test_a_port_under_another_job_is_taken_down_on_purpose() -> None:
    simulation, out = run("maintenance_port")
    down = [each for each in samples(out) if isinstance(each, State) and each.attrs.get("admin") == "down"]
    hosts = (*simulation.spec.hosts, *simulation.spec.spares)
    assert down and not any(f":{host}/" in each.component for each in down for host in hosts)


def test_checkpoints_and_evaluations_are_suspected_and_end() -> None:
    simulation, out = run("evaluation_pause")
    assert {each.phase for each in structs(out, StallSuspected)} == {"evaluation"}
    assert 2 < simulation.idle.seconds < 10


def test_uneven_data_makes_one_rank_late_for_a_moment() -> None:
    _, out = run("uneven_data")
    spread = [each.step_ms_mean for each in structs(out, RankProgress) if each.steps]
    assert max(spread) > 1.05 * sorted(spread)[len(spread) // 2]


def test_a_job_that_has_ended_ends_cleanly_on_all_ranks() -> None:
    _, out = run("job_end")
    ends = structs(out, RankExited)
    assert {each.rank for each in ends} == set(range(32)) and all(each.clean for each in ends)
    assert not [each for each in events(out) if each.name is EventName.PROCESS_EXITED]
    assert not structs(out, StallSuspected)


def test_application_xids_are_of_processes_that_are_no_ranks() -> None:
    simulation, out = run("application_xids")
    pids = {str(place.pid) for place in simulation._training.layout.places}
    xids = [each for each in events(out) if each.name is EventName.XID]
    assert xids and all(each.attrs["xid"] in ("13", "31", "43") and each.attrs["pid"] not in pids for each in xids)


@pytest.mark.parametrize(("kind", "doubt"), [("counter_reset", CounterDoubt.RESET), ("counter_wrap", CounterDoubt.WRAPPED)])
def test_counters_that_begin_anew_say_so(kind: str, doubt: CounterDoubt) -> None:
    _, out = run(kind)
    assert any(isinstance(each, Counter) and each.doubt is doubt for each in samples(out))


def test_a_collector_that_is_restarted_goes_on_numbering() -> None:
    simulation, out = run("collector_restart")
    beats = [each for each in structs(out, CollectorHeartbeat) if each.host in simulation.spec.hosts]
    gaps: dict[str, float] = {}
    for host in simulation.spec.hosts:
        at = [each.at for each in beats if each.host == host]
        gaps[host] = max((later - earlier).total_seconds() for earlier, later in pairwise(at))
        numbers = sorted(
            batch.seq for batch in structs(out, TelemetryBatch) if batch.host == host and batch.source == "process"
        )
        assert numbers == list(range(1, len(numbers) + 1))
    assert sum(1 for gap in gaps.values() if gap > 5.5) <= 1


def test_an_idle_host_that_boots_has_another_boot_id_and_begins_at_one() -> None:
    simulation, out = run("idle_reboot")
    beats = [each for each in structs(out, CollectorHeartbeat) if each.host in simulation.spec.spares]
    boots = list(dict.fromkeys(each.boot_id for each in beats))
    assert len(boots) == 2
    assert min(each.seq for each in beats if each.boot_id == boots[1]) == 1
    assert any(isinstance(each, Event) and each.name is EventName.BOOT for each in samples(out))


def test_a_clock_that_is_set_moves_what_its_host_says() -> None:
    simulation, out = run("clock_jump")
    offsets: dict[str, set[float]] = {}
    for each in out:
        if isinstance(each.struct, CollectorHeartbeat) and each.struct.host in simulation.spec.hosts:
            offsets.setdefault(each.struct.host, set()).add(round((each.time - each.at).total_seconds(), 0))
    assert sum(1 for seen in offsets.values() if len(seen) > 1) >= 1


def test_a_look_alike_that_is_unknown_or_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="no look-alike 'x'; choose among maintenance_port"):
        Simulation(job("x"), 1)
    with pytest.raises(ValueError, match="host 'h99' of look-alike fec_burst is not in fabric"):
        Simulation(replace(job(), benign=(BenignSpec(kind="fec_burst", host="h99"),)), 1)
