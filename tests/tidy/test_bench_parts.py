"""The pure parts of the measurements in bench/: what they count, choose and cut up. The measurements run apart."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from goodput_common.contracts.ids import kind_of
from goodput_common.contracts.verdict import (
    Action,
    ActionKind,
    Affected,
    Culprit,
    FaultClass,
    Verdict,
    VerdictState,
)
from goodput_faultlab.score import Outcome, Score, Scored
from goodput_faultlab.simulate.benign import BENIGN
from goodput_faultlab.simulate.spec import START

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import healthy  # noqa: E402
import mutations  # noqa: E402
from _mutations import MUTATIONS, wanted  # noqa: E402


def verdict(fault_class: FaultClass, *components: str) -> Verdict:
    named = tuple(Culprit(component=each, kind=kind_of(each), host=None) for each in components)
    return Verdict(
        id="v", version=1, incident="i", fabric="default", job="j", state=VerdictState.OPEN, fault_class=fault_class,
        culprit=named[0] if named else Culprit(component=None, kind=None, host=None), confidence=0.9, alternatives=(),
        evidence=(), explained=(), affected=Affected(), action=Action(kind=ActionKind.OBSERVE, target=None, reason=""),
        first_evidence_at=START, detected_at=START, published_at=START, diagnosed_by="engine/1", culprits=named,
    )  # fmt: skip


@pytest.mark.parametrize("hosts", [6, 64, 65, 128, 200, 512, 4096])
def test_islands_hold_all_hosts_and_the_large_ones_are_whole_pods(hosts: int) -> None:
    sizes = healthy.islands(hosts)
    assert sum(sizes) == hosts
    assert all(size % healthy.HOSTS_A_POD == 0 for size in sizes[:-1])


def test_a_day_of_4096_gpus_has_jobs_of_four_sizes_in_one_fabric() -> None:
    assert healthy.islands(512) == [256, 128, 64, 64]


def test_islands_of_one_fabric_keep_their_hosts_and_cables() -> None:
    parts = [healthy.h100_pod(hosts=4, spines=2, prefix=prefix) for prefix in ("a-", "b-")]
    joined = healthy.whole(parts)
    assert len(joined) == sum(map(len, parts))
    assert joined.hosts() == (*parts[0].hosts(), *parts[1].hosts())
    assert joined.peer_of("nic:b-h1/mlx5_0/1") == parts[1].peer_of("nic:b-h1/mlx5_0/1")


@pytest.mark.parametrize("seed", range(5))
def test_every_look_alike_comes_back_in_every_interval_before_the_jobs_end(seed: int) -> None:
    found = healthy.look_alikes(random.Random(seed), 1_000.0, 200.0)
    kinds = Counter(each.kind for each in found)
    assert kinds.keys() == set(BENIGN)
    assert min(count for kind, count in kinds.items() if kind not in healthy.ONCE) >= 4
    assert kinds["job_end"] == kinds["start_up"] == 1
    assert max(each.at_s for each in found) == found[-1].at_s == 1_000.0 - healthy.ENDS_S


@pytest.mark.parametrize(
    ("fault_class", "components", "hardware"),
    [
        (FaultClass.LINK_FLAP, ("nic:h1/mlx5_0/1",), True),
        (FaultClass.HOST_DOWN, ("host:h1",), True),
        (FaultClass.PROCESS_DEAD, ("rank:j/1",), False),
        (FaultClass.PROCESS_DEAD, ("rank:j/1", "gpu:h1/2"), True),
        (FaultClass.STORAGE_STALL, ("job:j",), False),
        (FaultClass.UNDETERMINED, (), False),
        (FaultClass.NO_HARDWARE_FAULT, (), False),
    ],
)
def test_hardware_is_blamed_by_whoever_names_a_machine_or_a_part_of_one(
    fault_class: FaultClass, components: tuple[str, ...], hardware: bool
) -> None:
    assert healthy.blames_hardware(verdict(fault_class, *components)) is hardware


def test_there_are_mutations_enough_each_with_a_name_and_something_to_run_against() -> None:
    names = [each.name for each in MUTATIONS]
    assert len(names) >= 20
    assert len(set(names)) == len(names)
    assert all(each.of and 0 < sum(each.of.values()) <= 12 for each in MUTATIONS)
    root = Path(__file__).parents[2]
    assert [test for each in MUTATIONS for test in each.tests if not (root / test).is_file()] == []


def test_every_rule_that_a_mutation_breaks_is_still_there() -> None:
    script = "import mutations, _mutations\nfor each in _mutations.MUTATIONS: each.patch()\n"
    done = subprocess.run([sys.executable, "-c", script], cwd=BENCH, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("want", "kind", "fault", "fits"),
    [
        ("gpu_memory", "fault", ("gpu_memory", "48", ""), True),
        ("gpu_memory/48", "fault", ("gpu_memory", "48", ""), True),
        ("gpu_memory/94", "fault", ("gpu_memory", "48", ""), False),
        ("gpu_memory", "cascade", ("gpu_memory", "48", "ecc"), False),
        ("cascade:ecc", "cascade", ("gpu_memory", "48", "ecc"), True),
        ("healthy", "healthy", None, True),
        ("healthy:warm_gpus", "healthy", None, True),
        ("healthy:job_end", "healthy", None, False),
        ("healthy", "fault", ("gpu_memory", "48", ""), False),
    ],
)
def test_incidents_are_chosen_by_class_flavour_cascade_or_look_alike(
    want: str, kind: str, fault: tuple[str, str, str] | None, fits: bool
) -> None:
    assert wanted(want, kind, fault, frozenset({"warm_gpus"})) is fits


def scored(outcome: Outcome, *, component_right: bool = False, wrong: float = 0.0) -> Scored:
    return Scored(entry="e", scenario="s", outcome=outcome, component_right=component_right, wrong_confidence=wrong)


@pytest.mark.parametrize(
    ("entries", "points"),
    [
        ((), 2),
        ((scored(Outcome.RIGHT, component_right=True),), 2),
        ((scored(Outcome.RIGHT, component_right=True, wrong=0.9),), 1),
        ((scored(Outcome.WRONG_CLASS, component_right=True),), 1),
        ((scored(Outcome.WRONG, wrong=0.9),), -1),
        ((scored(Outcome.WRONG, wrong=0.5),), 0),
        ((scored(Outcome.MISSED),), 0),
        ((scored(Outcome.RIGHT, component_right=True), scored(Outcome.FALSE_ALARM, wrong=0.9)), 0),
    ],
)
def test_being_right_is_worth_most_and_blaming_somebody_else_costs(entries: tuple[Scored, ...], points: int) -> None:
    assert mutations.points_of(Score(entries=entries)) == points


@pytest.mark.parametrize(
    ("run", "caught"),
    [
        (mutations.Run({1: 2, 2: 2}), False),
        (mutations.Run({1: 2, 2: 1}), True),
        (mutations.Run({1: 2, 2: 2}, broken=("tests/test_x.py",)), True),
        (mutations.Run({}, raised="Gone: moved"), False),
    ],
)
def test_a_mutation_is_caught_by_fewer_points_or_a_broken_expectation_and_not_by_failing_to_run(
    run: mutations.Run, caught: bool
) -> None:
    assert mutations.caught({1: 2, 2: 2}, run) is caught
