"""Everything that stands while runs come and go: network, bus, database, services, collectors, the fork server.

Built inside namespaces of the lab's own (see `enter`). All of it in parallel: on two cores the imports are what takes time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.provision import provision
from goodput_common.contracts import subjects
from goodput_faultlab.lab.forge import RankForge
from goodput_faultlab.lab.freezer import Freezer
from goodput_faultlab.lab.job import Job
from goodput_faultlab.lab.network import Network
from goodput_faultlab.lab.observer import Observer
from goodput_faultlab.lab.plan import LabPlan
from goodput_faultlab.lab.result import LabResult
from goodput_faultlab.lab.run import Ground, LabRunError, Run
from goodput_faultlab.lab.scenarios import SCENARIOS
from goodput_faultlab.lab.topology import SOURCE, snapshot
from goodput_faultlab.ledger import Ledger
from goodput_faultlab.stack import Stack

COLLECTORS_WITHIN_S = 90.0
COLLECTOR_STOP_WITHIN_S = 10.0


class World:
    def __init__(self, plan: LabPlan, directory: Path, *, name: str, say: Callable[[str], None]) -> None:
        """`name` is unique on this machine: cgroups carry it."""
        self._plan = plan
        self._directory = directory
        self._say = say
        self._network = Network(plan)
        self._freezer = Freezer(name)
        self._forge = RankForge(self._log("fork-server"), self._rank_ended)
        self._stack = Stack(
            directory / "stack",
            fabric=plan.fabric,
            nats_host=plan.bus_address,
            settings={
                "GOODPUT_LOG_LEVEL": os.environ.get("GOODPUT_LOG_LEVEL", "INFO"),
                "GOODPUT_RECOVERY_POLICY": str(self._write_policy()),
            },
            on_progress=say,
        )
        self._collectors: dict[str, asyncio.subprocess.Process] = {}
        self._bus: JetStreamBus | None = None
        self._observer: Observer | None = None
        self._topology_version = itertools.count(1)
        self._run_number = itertools.count(1)
        self._job: Job | None = None
        self._announcing: set[asyncio.Task[None]] = set()

    def _write_policy(self) -> Path:
        """Recovery's budgets count nodes and actions over a day, in which each run of the lab is a repaired cluster with its
        spares standing ready; and restarts here take seconds."""
        plan = self._plan
        policy = {
            "spare_nodes": 1000 * len(plan.spare_hosts),
            "prices": {"downtime_scale": 0.05, "checkpoint_interval_s": 2.0, "gpus_per_host": plan.ranks_per_host},
            "budget": {"nodes_out_share_max": 1.0, "nodes_out_window_s": 20.0, "fabric_actions_max": 1000},
        }
        path = self._directory / "recovery-policy.json"
        path.write_text(json.dumps(policy, indent=2))
        return path

    async def start(self) -> None:
        """Raises StackError, ForgeError, OSError."""
        (self._directory / "logs").mkdir(parents=True, exist_ok=True)
        self._say(f"network: {len(self._plan.all_hosts)} hosts, {self._plan.rails} rail(s), management")
        await asyncio.to_thread(self._network.build)
        await self._forge.start(self._network.host_namespace.values())
        await self._stack.nats.start()
        await asyncio.gather(self._start_observing(), self._stack.start())
        await self._publish_topology()
        await self._forge.ready()
        await self._collectors_ready()
        self._say("the lab is ready")

    async def _start_observing(self) -> None:
        self._bus = await JetStreamBus.connect(self._stack.nats.url, name="lab")
        await provision(self._bus)
        self._observer = Observer(self._bus)
        await self._observer.start()
        self._say("starting a collector on each host")
        for host in self._plan.all_hosts:
            self._run_dir(host.name).mkdir(parents=True, exist_ok=True)
            self._kernel_log(host.name).touch()
            self._collectors[host.name] = await self._start_collector(host.name)

    async def _collectors_ready(self) -> None:
        """A fault injected before its host is watched would be a fault that nobody could have seen."""
        assert self._observer is not None
        deadline = asyncio.get_running_loop().time() + COLLECTORS_WITHIN_S
        while missing := [host for host in self._collectors if host not in self._observer.collectors]:
            self._collectors_alive()
            self._observer.changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._observer.changed.wait(), 1.0)
            if asyncio.get_running_loop().time() > deadline:
                silent = ", ".join(missing)
                raise LabRunError(
                    f"no heartbeat from the collectors of {silent} in {COLLECTORS_WITHIN_S:.0f} s; {self._where}"
                )

    def _collectors_alive(self) -> None:
        dead = [host for host, process in self._collectors.items() if process.returncode is not None]
        if dead:
            raise LabRunError(f"the collectors of {', '.join(dead)} have ended; {self._where}")

    @property
    def _where(self) -> str:
        return f"their logs are in {self._directory / 'logs'}"

    async def run(self, scenario: str, seed: int) -> LabResult:
        """Raises LabRunError."""
        assert self._observer is not None
        number = next(self._run_number)
        job = f"lab-{os.getpid():x}-{int(datetime.now(UTC).timestamp()):x}-{number}"
        ground = Ground(
            plan=self._plan,
            network=self._network,
            forge=self._forge,
            observer=self._observer,
            freezer=self._freezer,
            ledger=Ledger(self._directory / "ledger.jsonl"),
            kernel_logs={host.name: self._kernel_log(host.name) for host in self._plan.all_hosts},
            run_folder=self._directory / "hosts",
            bus_url=self._stack.nats.url,
            announce=self._announce,
            say=self._say,
        )
        run = Run(
            ground,
            SCENARIOS[scenario],
            seed,
            number=number,
            job=job,
            folder=self._directory / "runs" / f"{number:03}-{scenario}",
        )
        self._job = run.job
        self._collectors_alive()
        try:
            return await run()
        finally:
            self._job = None

    async def stop(self) -> None:
        self._freezer.thaw()
        await self._forge.stop()
        if self._observer is not None:
            await self._observer.stop()
        if self._bus is not None:
            await self._bus.close()
        await asyncio.gather(*(_end(process) for process in self._collectors.values()))
        await self._stack.stop()
        self._network.close()

    def _rank_ended(self, pid: int, exit_code: int) -> None:
        if self._job is not None:
            self._job.rank_ended(pid, exit_code)

    def _announce(self) -> None:
        """The topology again, so that the recording of a run is complete in itself."""
        task = asyncio.get_running_loop().create_task(self._publish_topology(), name="lab-topology")
        self._announcing.add(task)
        task.add_done_callback(self._announcing.discard)

    async def _publish_topology(self) -> None:
        assert self._bus is not None
        version = next(self._topology_version)
        message = snapshot(self._plan, datetime.now(UTC), version)
        await self._bus.publish(
            subjects.topology(self._plan.fabric, SOURCE),
            message,
            id=f"{self._plan.fabric}/{SOURCE}/topology/{os.getpid()}/{version}",
            source="lab",
        )

    async def _start_collector(self, host: str) -> asyncio.subprocess.Process:
        namespace = self._network.host_namespace[host]
        environment = {
            **self._stack.environment(),
            "GOODPUT_HOST": host,
            "GOODPUT_RUN_DIR": str(self._run_dir(host)),
            "GOODPUT_KERNEL_LOG": str(self._kernel_log(host)),
            "GOODPUT_COLLECTOR_HTTP": "false",
            "GOODPUT_COLLECTOR_OFF": "discovery",  # the lab tells its own shape; this machine's GPUs are not its hosts'
        }
        command = (sys.executable, "-m", "goodput_faultlab.lab.onhost", "--network", str(namespace), "--")
        with self._log(f"collector-{host}").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *command,
                *(sys.executable, "-m", "goodput_collector"),
                pass_fds=(namespace,),
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _log(self, name: str) -> Path:
        folder = self._directory / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.log"

    def _run_dir(self, host: str) -> Path:
        return self._directory / "hosts" / host

    def _kernel_log(self, host: str) -> Path:
        return self._directory / "hosts" / host / "kernel.log"


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), COLLECTOR_STOP_WITHIN_S)
    except TimeoutError:
        process.kill()
        await process.wait()
