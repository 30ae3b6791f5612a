"""simulate -> replay -> score: the same bytes twice, the same bytes from a shuffled and doubled log, and right."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from goodput_cli.main import build

SHUFFLED_WITHIN_S = 2.0
DOUBLED = 0.10


def goodput(*arguments: str, expect: int = 0) -> str:
    result = CliRunner().invoke(build(list(arguments)), list(arguments))
    assert result.exit_code == expect, result.output
    return result.stdout


@pytest.fixture(scope="module", params=["dead-link", "rank-killed-rough"])
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("simulated") / "run.jsonl"
    goodput("simulate", request.param, "--seed", "5", "--hosts", "4", "--seconds", "40", "-o", str(path), "--json")
    return path


def received(line: str) -> datetime:
    return datetime.fromisoformat(json.loads(line)["received_at"])


def test_a_replay_gives_the_same_bytes_twice(recording: Path) -> None:
    first = goodput("replay", str(recording), "--json")
    assert json.loads(first)["verdicts"]
    assert goodput("replay", str(recording), "--json") == first


@pytest.mark.parametrize("seed", [1, 2])
def test_order_and_doubles_make_no_difference(recording: Path, seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    lines = recording.read_text().splitlines(keepends=True)
    doubled = [line for line in lines for _ in range(2 if draw.random() < DOUBLED else 1)]
    keyed = [
        (received(line) + timedelta(seconds=draw.uniform(0, SHUFFLED_WITHIN_S)), n, line) for n, line in enumerate(doubled)
    ]
    shuffled = tmp_path / "shuffled.jsonl"
    shuffled.write_text("".join(line for _, _, line in sorted(keyed)))
    assert shuffled.read_text() != recording.read_text()
    assert goodput("replay", str(shuffled), "--json") == goodput("replay", str(recording), "--json")


def test_the_replayed_verdict_is_right_and_scored_so(recording: Path, tmp_path: Path) -> None:
    verdicts = tmp_path / "verdicts.json"
    verdicts.write_text(goodput("replay", str(recording), "--json"))
    ledger = recording.with_suffix(".ledger.jsonl")
    scored: dict[str, Any] = json.loads(goodput("score", "--ledger", str(ledger), "--verdicts", str(verdicts), "--json"))
    assert scored["correct"] is True
    assert scored["counts"]["right"] == 1


def test_verdicts_about_nobody_score_as_missed(recording: Path, tmp_path: Path) -> None:
    verdicts = tmp_path / "verdicts.json"
    verdicts.write_text('{"verdicts": []}')
    ledger = recording.with_suffix(".ledger.jsonl")
    scored = json.loads(goodput("score", "--ledger", str(ledger), "--verdicts", str(verdicts), "--json", expect=1))
    assert scored["correct"] is False
    assert (scored["counts"]["missed"], scored["counts"]["right"]) == (1, 0)


def test_a_bad_line_is_named_by_file_and_number(recording: Path, tmp_path: Path) -> None:
    from goodput_cli.output import Failure

    lines = recording.read_text().splitlines(keepends=True)
    broken = tmp_path / "broken.jsonl"
    broken.write_text(lines[0] + "not json\n" + "".join(lines[1:]))
    arguments = ["replay", str(broken)]
    result = CliRunner().invoke(build(arguments), arguments)
    assert isinstance(result.exception, Failure)
    assert f"{broken}:2" in str(result.exception)
