"""Flaps of 20 to 500 ms on a real veth pair: all counted, none invented.

`bench/flaps.py` does the work, in a network namespace of its own, and measures how exactly each is dated; here few flaps,
there as many as are asked for (`GOODPUT_TEST_FLAPS` for this test).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "flaps.py"


def test_every_flap_is_counted_and_none_is_invented(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare and ip")
    probe = subprocess.run(["unshare", "-Urnm", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"network namespaces are not allowed here: {probe.stderr.decode().strip()}")
    flaps = int(os.environ.get("GOODPUT_TEST_FLAPS", "40"))
    command = [sys.executable, str(BENCH), "--flaps", str(flaps), "--seed", "7", "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60 + 2 * flaps)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "flaps.json").read_bytes())["measured"]
    assert found["made"] == {"down": flaps, "up": flaps}
    assert found["told"] == found["made"]
    assert found["counters"] == found["made"]
    assert found["told_wrong"] == {"unmatched": 0}
