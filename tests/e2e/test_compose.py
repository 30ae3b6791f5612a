"""docker compose: up, a simulated job's traffic, a verdict over REST, down.

Runs the deployment as README describes it, with the images that docker-compose.yml names and the NATS user of each role.
Its project name and ports are its own, so that it does not meet a deployment that runs already.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.contracts.verdict import VerdictState
from goodput_common.runtime.clock import SystemClock
from goodput_faultlab.live import LiveRun, live_spec
from goodput_faultlab.score import score
from goodput_faultlab.simulate import Simulation

ROOT = Path(__file__).resolve().parents[2]
PORTS = {"NATS_PORT": "14222", "CORRELATOR_PORT": "18081", "RECOVERY_PORT": "18082", "COLLECTOR_PORT": "18083"}
pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]


def compose_command() -> list[str] | None:
    for command in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(command[0])
            and subprocess.run([*command, "version"], capture_output=True, check=False).returncode == 0
        ):
            return command
    return None


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    command = compose_command()
    if command is None or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no Docker engine answers here, or docker compose is missing")
    secrets_file = tmp_path_factory.mktemp("compose") / "env"
    made = subprocess.run([sys.executable, str(ROOT / "deploy/make_env.py")], capture_output=True, text=True, check=True)
    secrets_file.write_text(made.stdout.replace("COMPOSE_PROJECT_NAME=goodput", "COMPOSE_PROJECT_NAME=goodput-test"))
    environment = {**os.environ, **PORTS}
    compose = [*command, "--env-file", str(secrets_file), "--project-directory", str(ROOT)]

    def run(*arguments: str) -> None:
        subprocess.run([*compose, *arguments], cwd=ROOT, env=environment, check=True)

    run("build")
    try:
        run("up", "--detach")
        subprocess.run([sys.executable, str(ROOT / "deploy/wait_ready.py")], env=environment, check=True)
        values = dict(line.split("=", 1) for line in secrets_file.read_text().splitlines() if "=" in line and line[0] != "#")
        yield values
    finally:
        subprocess.run([*compose, "logs", "--tail", "40"], cwd=ROOT, env=environment, check=False)
        run("down", "--volumes")


async def test_a_verdict_comes_over_rest_from_the_containers(deployment: dict[str, str]) -> None:
    def connect(role: str) -> asyncio.Future[JetStreamBus]:
        password = deployment[f"NATS_{role.upper()}_PASSWORD"]
        url = f"nats://127.0.0.1:{PORTS['NATS_PORT']}"
        return asyncio.ensure_future(JetStreamBus.connect(url, name=f"compose-{role}", user=role, password=password))

    collector, reader, agent = await asyncio.gather(connect("collector"), connect("reader"), connect("agent"))
    try:
        spec = live_spec("dead-link", job="compose-1", start=datetime.now(UTC), fault_at_s=8.0, hosts=4)
        simulation = Simulation(spec, 3)
        run = LiveRun(collector, simulation, SystemClock(), listen_on=reader, answer_on=agent)
        await run.start()
        assert await run.play(lambda: run.over, timeout_s=180), [update.state for update in run.recovery]
        await run.stop()
    finally:
        await asyncio.gather(collector.close(), reader.close(), agent.close())

    url = f"http://127.0.0.1:{PORTS['CORRELATOR_PORT']}/v1/verdicts"
    async with httpx.AsyncClient(timeout=10) as client:
        headers = {"Authorization": f"Bearer {deployment['GOODPUT_VIEWER_TOKEN']}"}
        answer = await client.get(url, params={"job": "compose-1"}, headers=headers)
        refused = await client.get(url)
    answer.raise_for_status()
    found = answer.json()["items"]
    print(answer.text)
    assert [verdict["state"] for verdict in found] == [VerdictState.RESOLVED]
    assert found[0]["culprit"]["component"] == simulation.ledger[0].component
    assert score((*simulation.ledger, *simulation.background), run.chain).correct
    assert refused.status_code == httpx.codes.UNAUTHORIZED
