"""The entry point: failures become exit codes and a line that says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments", [["--help"], ["diagnose", str(Path(__file__).parent / "pastes")]], ids=["help", "diagnose"]
)
def test_a_full_disk_behind_standard_output_is_said_in_a_line(arguments: list[str]) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "goodput_cli.main", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 2
    assert "cannot write to standard output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
