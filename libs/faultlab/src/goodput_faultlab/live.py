"""A simulated job played live against real services: what the demo, the compose test and the kill -9 loop share.

The simulation's messages are published when their time comes; its ranks answer commands; and when recovery announces a
job-level action, the simulated job does what a real launcher would do. Everything that comes back is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import msgspec

from goodput_common.bus.errors import BusUnavailable, Retry
from goodput_common.bus.ports import Bus, Consumer, Message, Subscription
from goodput_common.contracts import subjects
from goodput_common.contracts.recovery import AgentCommand, PlanState, RecoveryUpdate
from goodput_common.contracts.verdict import Verdict, VerdictState
from goodput_common.runtime.clock import Clock
from goodput_common.runtime.logs import get_logger
from goodput_faultlab.simulate import Outgoing, Reaction, Simulation, SimulationSpec, scenario

TICK_S = 0.1
PUBLISHING_AT_ONCE = 64
WAITING_MAX = 4096  # messages that are due and not yet published: beyond it simulated time waits for the bus
PUBLISH_AGAIN_S = 0.5
ENDED = frozenset({PlanState.RECOVERED, PlanState.FAILED, PlanState.REFUSED, PlanState.VETOED})

log = get_logger("faultlab.live")


def live_spec(name: str, *, job: str, start: datetime, fault_at_s: float, hosts: int) -> SimulationSpec:
    """A named scenario that starts now on hosts that have just booted (the fabric may have had another run minutes ago),
    with its faults `fault_at_s` after the start."""
    spec = scenario(name, hosts=hosts)
    faults = tuple(replace(fault, at_s=fault_at_s) for fault in spec.faults)
    return replace(spec, job=job, start=start, faults=faults, fresh_hosts=True)


@dataclass
class LiveRun:
    """One job against one set of services. `heard` is called with each verdict version, recovery update and launcher's
    reaction as it comes; `published` lists what the bus has acknowledged, when `keep` is set."""

    bus: Bus
    simulation: Simulation
    clock: Clock
    heard: Callable[[Verdict | RecoveryUpdate | Reaction], None] = lambda _message: None
    keep: bool = False
    listen_on: Bus | None = None  # where roles are kept apart: a bus that may read verdicts and recovery,
    answer_on: Bus | None = None  # and one that may answer as an agent
    verdicts: dict[tuple[str, int], Verdict] = field(default_factory=dict)
    updates: dict[tuple[str, PlanState], RecoveryUpdate] = field(default_factory=dict)
    published: list[Outgoing] = field(default_factory=list)
    _subscriptions: list[Subscription] = field(default_factory=list)
    _due: asyncio.Queue[Outgoing] = field(default_factory=lambda: asyncio.Queue(WAITING_MAX))
    _publishers: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        """Listen for verdicts and recovery, and let the simulated ranks answer commands."""
        fabric, job = self.simulation.spec.fabric.name, self.simulation.spec.job
        for stream in ("VERDICT", "RECOVERY"):
            consumer = Consumer(
                durable=f"live-{subjects.token(job)}-{stream.lower()}",
                stream=stream,
                subjects=(subjects.of_job(stream, fabric, job),),
                slots=32,
            )
            self._subscriptions.append(await (self.listen_on or self.bus).consume(consumer, self._hear))
        self._subscriptions.append(await (self.answer_on or self.bus).serve(subjects.agents_of(fabric, job), self._answer))
        self._publishers = [
            asyncio.create_task(self._publish_due(), name=f"live publisher {n}") for n in range(PUBLISHING_AT_ONCE)
        ]

    async def play(self, done: Callable[[], bool], *, timeout_s: float) -> bool:
        """Publish the simulation in real time until `done()`, at most `timeout_s`. True when `done()` held."""
        deadline = self.clock.monotonic_s() + timeout_s
        while not done():
            if self.clock.monotonic_s() > deadline:
                return False
            for outgoing in self.simulation.advance(self.clock.now()):
                await self._due.put(outgoing)
            await self.clock.sleep(TICK_S)
        return True

    async def stop(self) -> None:
        """Wait for what is still being published, stop listening."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._due.join(), 30)
        for task in self._publishers:
            task.cancel()
        await asyncio.gather(*self._publishers, return_exceptions=True)
        for subscription in self._subscriptions:
            await subscription.drain()

    @property
    def chain(self) -> list[Verdict]:
        """Every version heard, oldest first."""
        return sorted(self.verdicts.values(), key=lambda verdict: (verdict.detected_at, verdict.id, verdict.version))

    @property
    def recovery(self) -> list[RecoveryUpdate]:
        """Every announcement heard, oldest first."""
        return sorted(self.updates.values(), key=lambda update: (update.at, update.plan))

    @property
    def over(self) -> bool:
        """The newest plan has ended, and every verdict is resolved."""
        newest: dict[str, Verdict] = {verdict.id: verdict for verdict in self.chain}
        last: dict[str, PlanState] = {update.plan: update.state for update in self.recovery}
        return (
            bool(newest)
            and all(verdict.state is VerdictState.RESOLVED for verdict in newest.values())
            and any(state in ENDED for state in last.values())
        )

    async def _publish_due(self) -> None:
        while True:
            outgoing = await self._due.get()
            try:
                await self._publish(outgoing)
            finally:
                self._due.task_done()

    async def _publish(self, outgoing: Outgoing) -> None:
        """Until the bus has it: a real host would keep it in its spool."""
        while True:
            try:
                await self.bus.publish(
                    outgoing.subject, outgoing.struct, id=outgoing.id, source=outgoing.source, time=outgoing.time
                )
            except BusUnavailable as error:
                log.debug("bus unavailable, keeping the message", id=outgoing.id, error=str(error))
                await self.clock.sleep(PUBLISH_AGAIN_S)
            else:
                if self.keep:
                    self.published.append(outgoing)
                return

    async def _hear(self, message: Message) -> None:
        data = message.data
        if isinstance(data, Verdict) and (data.id, data.version) not in self.verdicts:
            self.verdicts[data.id, data.version] = data
            self.heard(data)
        elif isinstance(data, RecoveryUpdate) and (data.plan, data.state) not in self.updates:
            self.updates[data.plan, data.state] = data
            self.heard(data)
            reaction = self.simulation.react(data)
            if reaction is not None:
                self.heard(reaction)

    async def _answer(self, message: Message) -> msgspec.Struct:
        command = message.data
        reply = self.simulation.answer(command) if isinstance(command, AgentCommand) else None
        if reply is None:  # a process that is gone or stopped: let the asker wait for its time-out
            await self.clock.sleep(timedelta(minutes=1).total_seconds())
            raise Retry(f"rank of {message.subject} does not answer")
        return reply
