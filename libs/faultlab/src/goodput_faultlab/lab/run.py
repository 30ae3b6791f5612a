"""One run of one scenario, from a job that trains to a job that trains again.

start the ranks -> all of them take steps -> ledger -> injection -> verdict -> the launcher carries out what recovery
decides -> all ranks are past the step at which they stood -> clear -> the job ends cleanly
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from goodput_common.contracts import ids
from goodput_common.contracts.recovery import PlanState, RecoveryUpdate
from goodput_common.contracts.verdict import ActionKind
from goodput_faultlab.lab.forge import RankForge
from goodput_faultlab.lab.freezer import Freezer
from goodput_faultlab.lab.job import Job, NoSpareHost
from goodput_faultlab.lab.judge import Judgement, judge
from goodput_faultlab.lab.network import Network
from goodput_faultlab.lab.observer import Observer, RunLog
from goodput_faultlab.lab.plan import LabPlan
from goodput_faultlab.lab.result import LabResult
from goodput_faultlab.lab.scenarios import Scenario, Stage, Victim, choose
from goodput_faultlab.ledger import Ledger, LedgerEntry

STEPS_BEFORE = 15  # the agents then know how long a step takes
TRAINING_WITHIN_S = 60.0
VERDICT_WITHIN_S = 45.0
RECOVERY_WITHIN_S = 90.0
SETTLE_S = 2.0  # after recovery, for a verdict that changes its mind
END_WITHIN_S = 15.0
SWAPS = frozenset({ActionKind.SWAP_NODE, ActionKind.DRAIN_AND_RESUME, ActionKind.CORDON_AT_CHECKPOINT})
RESTARTS = frozenset(
    {
        ActionKind.RESTART_RANK,
        ActionKind.RESTART_JOB,
        ActionKind.REINIT_COMMUNICATORS,
        ActionKind.RESET_GPU,
        ActionKind.EXCLUDE_NIC,
    }
)


class LabRunError(RuntimeError):
    """The run could not be made (no verdict is no such error). The text says what did not happen and where to look."""


@dataclass(kw_only=True)
class Ground:
    """What the lab lends to a run."""

    plan: LabPlan
    network: Network
    forge: RankForge
    observer: Observer
    freezer: Freezer
    ledger: Ledger
    kernel_logs: dict[str, Path]
    run_folder: Path
    bus_url: str
    announce: Callable[[], object]
    say: Callable[[str], None]


class Run:
    def __init__(self, ground: Ground, scenario: Scenario, seed: int, *, number: int, job: str, folder: Path) -> None:
        self._ground = ground
        self._scenario = scenario
        self._seed = seed
        self._folder = folder
        self._recording = folder / "messages.jsonl"
        self._notes: list[str] = []
        self._orders: asyncio.Queue[RecoveryUpdate] = asyncio.Queue(maxsize=32)
        self.job = Job(
            job,
            ground.plan,
            ground.forge,
            ground.network.host_namespace,
            folder=folder / "job",
            run_folder=ground.run_folder,
            bus_url=ground.bus_url,
            number=number,
        )
        self._stage = Stage(
            plan=ground.plan,
            network=ground.network,
            job=self.job,
            freezer=ground.freezer,
            kernel_logs=ground.kernel_logs,
        )

    async def __call__(self) -> LabResult:
        """Raises LabRunError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        victim = choose(self._seed, self._ground.plan, self._scenario.name)
        with self._recording.open("ab") as recording:
            log = RunLog(self.job.name, recording, self._on_recovery)
            self._ground.observer.run = log
            launcher = asyncio.create_task(self._launcher(), name="lab-launcher")
            try:
                return await self._run(log, victim)
            finally:
                launcher.cancel()
                await asyncio.gather(launcher, return_exceptions=True)
                await self._scenario.clear(victim, self._stage)
                await self.job.kill()
                self._ground.observer.run = None

    async def _run(self, log: RunLog, victim: Victim) -> LabResult:
        ground = self._ground
        ground.say(
            f"{self._scenario.name} seed {self._seed}: starting {ground.plan.world_size} ranks as job {self.job.name}"
        )
        ground.announce()
        await self.job.start()
        if not await log.until(lambda: self._all_past(log, STEPS_BEFORE), TRAINING_WITHIN_S):
            raise LabRunError(self._not_training(log))

        id = f"{self.job.name}/{self._scenario.name}"
        entry = self._scenario.entry(victim, self._stage, id=id, at=datetime.now(UTC))
        await asyncio.to_thread(ground.ledger.write, entry)
        ground.say(
            f"training at step {self._slowest(log)}; injecting: {self._scenario.summary} ({entry.component or 'nobody'})"
        )
        injected_s = asyncio.get_running_loop().time()
        injection = asyncio.create_task(self._scenario.inject(victim, self._stage), name="lab-injection")
        try:
            recover_s = await self._watch(log, entry, injected_s)
        finally:
            if not injection.done():
                injection.cancel()
            await asyncio.gather(injection, return_exceptions=True)
        if not injection.cancelled() and (error := injection.exception()) is not None:
            raise LabRunError(f"{self._scenario.name} could not be injected: {error}") from error

        judgement = self._judge(entry, log)
        await self._scenario.clear(victim, self._stage)
        entry = await asyncio.to_thread(ground.ledger.clear, entry, datetime.now(UTC))
        if not await self.job.finish(END_WITHIN_S):
            self._note("the ranks did not end by themselves and were killed")
        await asyncio.sleep(0.5)
        return self._result(entry, log, judgement, recover_s)

    async def _watch(self, log: RunLog, entry: LedgerEntry, injected_s: float) -> float | None:
        """Until the verdict is there and training is back; the seconds that took, or None."""
        loop = asyncio.get_running_loop()
        if not self._scenario.blames:
            await asyncio.sleep(self._scenario.observe_s)
            return None
        within_s = self._scenario.observe_s or VERDICT_WITHIN_S
        if not await log.until(lambda: self._judge(entry, log).named_at is not None, within_s):
            self._ground.say(f"no right verdict within {within_s:.0f} s: {self._judge(entry, log).why}")
            return None
        found = self._judge(entry, log)
        self._ground.say(f"{loop.time() - injected_s:.1f} s after the injection: {found.why}")
        stood_at = max((report.step for report in log.progress.values()), default=0)
        if not await log.until(lambda: self._all_past(log, stood_at), RECOVERY_WITHIN_S):
            self._note(f"training did not get past step {stood_at} within {RECOVERY_WITHIN_S:.0f} s")
            return None
        recover_s = loop.time() - injected_s
        self._ground.say(f"{recover_s:.1f} s after the injection: all ranks are past step {stood_at} again")
        await log.until(lambda: self._verified(log), 10.0)
        await asyncio.sleep(SETTLE_S)
        return recover_s

    # -- the launcher's part of recovery -------------------------------------------------------------------------------

    def _on_recovery(self, update: RecoveryUpdate) -> None:
        self._ground.say(f"recovery: {update.action.value} {update.target or ''} is {update.state.value} - {update.reason}")
        if update.state is PlanState.EXECUTING:
            self._orders.put_nowait(update)

    async def _launcher(self) -> None:
        done: set[str] = set()
        while True:
            update = await self._orders.get()
            if update.plan in done:
                continue
            done.add(update.plan)
            try:
                await self._carry_out(update)
            except (NoSpareHost, RuntimeError) as error:
                self._note(f"{update.action.value} {update.target}: {error}")

    async def _carry_out(self, update: RecoveryUpdate) -> None:
        if update.action in SWAPS:
            host = self._host_of(update.target)
            if host is None or host not in self.job.hosts:
                self._note(f"{update.action.value} names {update.target}, which is no host of this job")
                return
            spare = self.job.swap(host)
            self._note(f"{update.action.value}: the ranks of {host} start on {spare}, generation {self.job.generation + 1}")
        elif update.action in RESTARTS:
            if update.action is ActionKind.REINIT_COMMUNICATORS:
                await self._links_up()
            self._note(f"{update.action.value}: all ranks start again in place, generation {self.job.generation + 1}")
        else:
            return
        self._ground.say(f"launcher: {self._notes[-1]}")
        self._ground.freezer.thaw()
        await self.job.restart()

    async def _links_up(self) -> None:
        """New communicators over a dead cable would hang like the old ones."""
        plan = self._ground.plan
        for _ in range(int(RECOVERY_WITHIN_S)):
            down = [
                (host, rail)
                for host in self.job.hosts
                for rail in range(plan.rails)
                if not await asyncio.to_thread(self._ground.network.port_is_up, host, rail)
            ]
            if not down:
                return
            await asyncio.sleep(1.0)

    def _host_of(self, target: str | None) -> str | None:
        if target is None:
            return None
        parsed = ids.parse(target)
        if parsed.kind is ids.ComponentKind.RANK:
            return self.job.ranks[ids.rank_of(target)[1]].host
        if parsed.kind is ids.ComponentKind.LINK:
            return next((host for end in ids.link_ends(target) if (host := ids.host_of(end)) is not None), None)
        return ids.host_of(target)

    # -- looking -------------------------------------------------------------------------------------------------------

    def _judge(self, entry: LedgerEntry, log: RunLog) -> Judgement:
        return judge(entry, log.verdicts.values(), blames=self._scenario.blames, may_abstain=self._scenario.may_abstain)

    def _all_past(self, log: RunLog, step: int) -> bool:
        """Reports of the present generation only: those of ranks that were killed are history."""
        reports = [report for report in log.progress.values() if report.generation == self.job.generation]
        return len(reports) == self._ground.plan.world_size and min(report.step for report in reports) > step

    def _slowest(self, log: RunLog) -> int:
        return min((report.step for report in log.progress.values()), default=-1)

    def _verified(self, log: RunLog) -> bool:
        return any(update.state in (PlanState.RECOVERED, PlanState.FAILED) for update in log.recovery.values())

    def _not_training(self, log: RunLog) -> str:
        ended = "; ".join(self.job.exits) or "none ended"
        steps = {rank: report.step for rank, report in sorted(log.progress.items())}
        return (
            f"the ranks did not take {STEPS_BEFORE} steps within {TRAINING_WITHIN_S:.0f} s (by rank: {steps}; {ended}); "
            f"their logs are in {self._folder / 'job'}"
        )

    def _note(self, text: str) -> None:
        self._notes.append(text)

    def _result(self, entry: LedgerEntry, log: RunLog, judgement: Judgement, recover_s: float | None) -> LabResult:
        versions = sorted(log.verdicts.values(), key=lambda verdict: (verdict.published_at, verdict.version))
        named_at = judgement.named_at
        return LabResult(
            scenario=self._scenario.name,
            seed=self._seed,
            ledger=(entry,),
            verdicts=tuple(versions),
            recovery=tuple(sorted(log.recovery.values(), key=lambda update: update.at)),
            correct=judgement.correct,
            detect_s=None if named_at is None else round((named_at - entry.injected_at).total_seconds(), 3),
            recover_s=None if recover_s is None else round(recover_s, 3),
            why=judgement.why,
            job=self.job.name,
            recording=str(self._recording),
            logs=str(self._folder),
            notes=tuple(self._notes),
        )
