"""Nothing of a lab outlives it, whatever ends its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from goodput_faultlab.lab import preflight

GONE_WITHIN_S = 60.0

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.xdist_group("lab"), pytest.mark.timeout(240)]

OWNER = """
import sys
from pathlib import Path
from goodput_faultlab.lab import LabSession
lab = LabSession(directory=Path(sys.argv[1]), on_progress=lambda text: print(text, flush=True))
lab.start()
"""


def processes_of(folder: Path) -> list[int]:
    """Processes whose command line or environment speaks of the lab's folder."""
    mark = str(folder).encode()
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                if mark in (process / "cmdline").read_bytes() or mark in (process / "environ").read_bytes():
                    found.append(int(process.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_owner_that_is_stopped_leaves_no_process_behind(number: signal.Signals, tmp_path: Path) -> None:
    problems = [str(problem) for problem in preflight()]
    if problems and os.environ.get("GOODPUT_REQUIRE_LAB") == "1":
        pytest.fail("\n".join(problems))
    if problems:
        pytest.skip("the lab cannot run here: " + "; ".join(problems))
    folder = tmp_path / "the-lab"
    owner = subprocess.Popen((sys.executable, "-c", OWNER, str(folder)), stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    for line in owner.stdout:
        if "collector" in line:
            break
    assert len(processes_of(folder)) > 2
    owner.send_signal(number)
    owner.wait(GONE_WITHIN_S)
    deadline = time.monotonic() + GONE_WITHIN_S
    while (left := processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []
