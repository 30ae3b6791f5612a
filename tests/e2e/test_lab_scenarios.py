"""The lab for real: eight torch ranks on four hosts, each fault once, and what the services make of it.

One lab serves all tests of this file. Where namespaces, torch or the servers are missing they skip and say what to do about
it; with GOODPUT_REQUIRE_LAB=1 (in CI) that is a failure.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from goodput_cli.replay import replay_file
from goodput_common.contracts.recovery import PlanState
from goodput_common.contracts.verdict import ActionKind, Verdict
from goodput_faultlab.lab import LabResult, LabSession, preflight
from goodput_faultlab.lab.judge import judge
from goodput_faultlab.ledger import Ledger

DETECT_WITHIN_S = 10.0
SEED = int(os.environ.get("GOODPUT_LAB_SEED", "1"))
FAULTS = ("link-down", "link-flap", "rank-killed", "rank-frozen", "gil-held", "collective-skipped", "gpu-off-bus")

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.xdist_group("lab"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabSession]:
    problems = [str(problem) for problem in preflight()]
    if problems and os.environ.get("GOODPUT_REQUIRE_LAB") == "1":
        pytest.fail("the lab is required here and cannot run:\n" + "\n".join(problems))
    if problems:
        pytest.skip("the lab cannot run here: " + "; ".join(problems))
    with LabSession(directory=tmp_path_factory.mktemp("lab"), on_progress=print) as lab:
        yield lab


@pytest.fixture(scope="module")
def results() -> dict[str, LabResult]:
    """What the faults' runs left, for the tests below that look at it from another side."""
    return {}


@pytest.mark.parametrize("scenario", FAULTS)
def test_the_culprit_is_named_and_training_comes_back(scenario: str, lab: LabSession, results: dict[str, LabResult]) -> None:
    result = results[scenario] = lab.run(scenario, SEED)
    assert result.correct, result.why
    assert result.detect_s is not None
    assert result.recover_s is not None, result.notes
    executed = [update for update in result.recovery if update.state is PlanState.EXECUTING]
    assert executed or scenario == "link-flap", "only a link that came back may have healed by itself"
    assert len({update.fencing_token for update in executed}) == len(executed)


def test_a_healthy_job_gets_no_verdict_and_no_action(lab: LabSession) -> None:
    result = lab.run("healthy", SEED)
    assert result.correct, result.why
    assert not [update for update in result.recovery if update.action is not ActionKind.OBSERVE]


def test_packet_loss_blames_its_link_or_nobody(lab: LabSession) -> None:
    result = lab.run("packet-loss", SEED)
    assert result.correct, result.why


def test_verdicts_came_well_before_gloos_own_timeout(results: dict[str, LabResult]) -> None:
    """Relative to the run's own pace: a verdict later than this is late on any machine."""
    times = sorted(result.detect_s for result in results.values() if result.detect_s is not None)
    if not times:
        pytest.skip("no run to look at")
    assert times[len(times) // 2] < DETECT_WITHIN_S


def test_the_ledger_was_written_before_each_injection(lab: LabSession, results: dict[str, LabResult]) -> None:
    entries = {entry.job: entry for entry in Ledger(lab.directory / "ledger.jsonl").entries()}
    for result in results.values():
        (told,) = result.ledger
        assert entries[result.job] == told
        assert told.cleared_at is not None
        assert all(verdict.detected_at >= told.injected_at for verdict in result.verdicts)


@pytest.mark.parametrize("scenario", ["link-down", "rank-frozen", "collective-skipped"])
def test_a_recorded_run_replays_to_the_same_culprit_byte_for_byte(scenario: str, results: dict[str, LabResult]) -> None:
    if scenario not in results:
        pytest.skip("no run to look at")
    result = results[scenario]
    first, again = (_replayed(result) for _ in range(2))
    assert msgspec.json.encode(first) == msgspec.json.encode(again)
    (entry,) = result.ledger
    assert judge(entry, first).correct


def test_a_recording_that_is_shuffled_and_doubled_replays_to_the_same_verdicts(
    results: dict[str, LabResult], tmp_path: Path
) -> None:
    if "rank-killed" not in results:
        pytest.skip("no run to look at")
    result = results["rank-killed"]
    lines = Path(result.recording).read_bytes().splitlines(keepends=True)
    chance = random.Random(SEED)
    doubled = lines + chance.sample(lines, len(lines) // 10)
    keyed = [(msgspec.json.decode(line)["received_at"], line) for line in doubled]
    moved = sorted(keyed, key=lambda each: _seconds(each[0]) + chance.uniform(0.0, 2.0))
    shuffled = tmp_path / "shuffled.jsonl"
    shuffled.write_bytes(b"".join(line for _, line in moved))
    assert msgspec.json.encode(_replayed(result, shuffled)) == msgspec.json.encode(_replayed(result))


def _seconds(stamp: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(stamp).timestamp()


def _replayed(result: LabResult, recording: Path | None = None) -> list[Verdict]:
    verdicts = replay_file(recording or Path(result.recording), quiet=True)
    return [verdict for verdict in verdicts if verdict.job == result.job]
