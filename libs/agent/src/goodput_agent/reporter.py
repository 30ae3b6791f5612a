"""The agent's own thread: looks at the step clock, sends what there is to say, answers commands.

It owns an asyncio loop, so that nothing here ever runs in the training thread. All that the two share is the step clock (no
lock), the pause gate (an event) and the outgoing queue (a lock held for one append). The loop of looks never waits for the
bus: one task fills the queue, another empties it, reconnecting with growing delay for ever. Reports go to the host's
collector where there is one (`handover`); the ranks of a host make theirs at the same moments.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from goodput_agent.commands import Commands, refusal
from goodput_agent.files import RunDirectory
from goodput_agent.gate import PauseGate
from goodput_agent.guard import complaints
from goodput_agent.handover import Handover, phase_s, until_next_s
from goodput_agent.identity import Identity
from goodput_agent.outqueue import Outgoing, OutQueue
from goodput_agent.recorder import FlightRecorder, NoFlightRecorder, where_is
from goodput_agent.stall import DEFAULT_POLICY, StallPolicy, StallRule
from goodput_agent.steps import StepClock
from goodput_agent.waiting import Waiting, gap_s, place_of, waits_on_host
from goodput_agent.watch import Due, Watch
from goodput_common.bus.errors import BusUnavailable
from goodput_common.bus.ports import Bus, Message
from goodput_common.contracts import subjects
from goodput_common.contracts.ids import rank_id
from goodput_common.contracts.job import GroupProgress, RankExited, RankProgress, RankRegistered
from goodput_common.contracts.recovery import AgentCommand
from goodput_common.flight_recorder import UnreadableDump
from goodput_common.runtime.clock import Clock

T = TypeVar("T")
Connect = Callable[[], Awaitable[Bus]]

LOOK_EVERY_S = 0.25
REPORT_EVERY_S = 1.0
MEMBERS_EVERY_S = 30.0
RETRY_FIRST_S, RETRY_MAX_S = 0.5, 15.0
FLUSH_WITHIN_S = 2.0


class Reporter:
    def __init__(
        self,
        identity: Identity,
        steps: StepClock,
        gate: PauseGate,
        recorder: FlightRecorder,
        files: RunDirectory,
        connect: Connect | None,
        clock: Clock,
        *,
        main_thread: int,
        policy: StallPolicy = DEFAULT_POLICY,
        collector: Path | None = None,
    ) -> None:
        """`collector` is the socket on which the host's collector takes reports."""
        self.identity = identity
        self.queue = OutQueue()
        self._steps = steps
        self._gate = gate
        self._recorder = recorder
        self._files = files
        self._connect = connect
        self._clock = clock
        self._main_thread = main_thread
        self._watch = Watch(identity, steps, StallRule(policy))
        self._commands = Commands(identity, gate, lambda: self.dump("asked"), lambda: steps.step)
        self._waiting = Waiting()
        self._glances = False  # whether there is anything to see
        self._glanced = 0
        self._steps_begin = False  # the loop marks where its steps begin
        self._sent = 0
        self._report_due_s = 0.0
        self._phase_s = phase_s(identity.host, REPORT_EVERY_S)
        self._handover = Handover(collector, self._untaken, clock.monotonic_s) if collector is not None else None
        self._members_told: dict[str, tuple[int, ...]] = {}
        self._members_due_s = 0.0
        self._wake: asyncio.Event | None = None
        self._bus_away = False
        self._ending = False

    # -- what it does, one look at a time ------------------------------------------------------------------------------

    def register(self) -> None:
        """Announce this rank on the bus and in the run directory."""
        mine = self.identity
        registered = RankRegistered(
            **{name: getattr(mine, name) for name in mine.__struct_fields__},
            at=self._clock.now(),
            steps_published_s=REPORT_EVERY_S,
        )
        self._put("rank_registered", registered, vital=True)
        self._try("registration file", lambda: self._files.register(registered))

    def look(self) -> None:
        """One look: a report when it is due, a stall when steps have stopped."""
        now_s = self._clock.monotonic_s()
        if self._handover is not None:
            self._handover.look()
        if self._gate.expire():
            complaints.worked("pause")
        paused = self._gate.requested
        due = self._watch.look(now_s, paused=paused)
        if due is Due.SUSPECT:
            collective, frames = where_is(self._main_thread)
            self._put("stall_suspected", self._watch.stall(now_s, self._clock.now(), collective=collective, frames=frames))
            self.report()
            self.dump("stall")
        elif due is Due.DUMP_AGAIN:
            self.dump("stall")
        if now_s >= self._report_due_s:
            wait_s = until_next_s(now_s, REPORT_EVERY_S, self._phase_s)
            self._report_due_s = now_s + (wait_s if wait_s > REPORT_EVERY_S / 2 else wait_s + REPORT_EVERY_S)
            self.report()

    def report(self, *, alone: bool = False) -> None:
        """`alone`: not through the collector."""
        now_s = self._clock.monotonic_s()
        groups = self._lean(self._try("flight recorder status", self._recorder.status) or (), now_s)
        collective, _ = where_is(self._main_thread)
        progress = self._watch.progress(
            now_s,
            self._clock.now(),
            groups=groups,
            collective=collective,
            paused=self._gate.waiting,
            waiting_share=self._waiting.take() if self._watch.has_finished else None,
        )
        self._report(progress, alone=alone)
        self._glances = bool(self._try("backends", waits_on_host))
        if not self._glances:
            self._waiting.away()

    def glance(self) -> None:
        """Look where the main thread is: in a collective it waits."""
        place = place_of(sys._current_frames().get(self._main_thread))
        in_step = self._steps.now().in_step
        self._steps_begin = self._steps_begin or in_step
        self._waiting.glance(self._clock.monotonic_s(), place, in_step=in_step or not self._steps_begin)

    def _lean(self, groups: tuple[GroupProgress, ...], now_s: float) -> tuple[GroupProgress, ...]:
        """Members of a group are told when they are new and every half minute; repeated in every report they would be
        most of the traffic of a large job."""
        if now_s >= self._members_due_s:
            self._members_due_s = now_s + MEMBERS_EVERY_S
            self._members_told = {}
        lean = tuple(
            msgspec.structs.replace(each, ranks=()) if self._members_told.get(each.group) == each.ranks else each
            for each in groups
        )
        self._members_told.update((each.group, each.ranks) for each in groups)
        return lean

    def dump(self, reason: str) -> str:
        """Take a dump: to the run directory and to the bus. Returns "" or why there is none."""
        try:
            recording = self._recorder.record(
                self.identity, at=self._clock.now(), reason=reason, origin=str(self._files.dump)
            )
        except (NoFlightRecorder, UnreadableDump) as error:
            return str(error)
        self._put("flight_recorder", recording.dump)
        self._try("dump file", lambda: self._files.write_dump(recording.data))
        return ""

    def leave(self, *, clean: bool, reason: str) -> None:
        """The last words of this rank."""
        self._watch.look(self._clock.monotonic_s(), paused=True)
        if self._handover is not None:
            self._handover.give_back()  # nobody will look again whether it was taken
        self.report(alone=True)
        mine = self.identity
        exited = RankExited(
            fabric=mine.fabric,
            job=mine.job,
            rank=mine.rank,
            host=mine.host,
            at=self._clock.now(),
            generation=mine.generation,
            clean=clean,
            reason=reason,
        )
        self._put("rank_exited", exited)  # before the dump: if there is time for one of them only, then for this
        if clean:
            self._try("registration file", self._files.withdraw)
        else:
            self._try("last dump", lambda: self.dump("exit"))

    # -- the two tasks -------------------------------------------------------------------------------------------------

    async def run(self, leaving: asyncio.Event, last_words: Callable[[], tuple[bool, str]]) -> None:
        """Until `leaving` is set; then says `last_words` (clean, reason) and gives the bus `FLUSH_WITHIN_S` to take them."""
        self._wake = asyncio.Event()
        sender = asyncio.create_task(self._send_all(), name="goodput-agent-send")
        handing = asyncio.create_task(self._handover.run(), name="goodput-agent-hand") if self._handover else None
        self.register()
        self._glance_on(asyncio.get_running_loop(), leaving)
        while not leaving.is_set():
            self._try("look", self.look)
            try:
                await asyncio.wait_for(leaving.wait(), self._until_look_s())
            except TimeoutError:
                continue
        clean, reason = last_words()
        self._try("last words", lambda: self.leave(clean=clean, reason=reason))
        if handing is not None:
            handing.cancel()
            await asyncio.gather(handing, return_exceptions=True)
        self._ending = True
        self._wake.set()
        if not self._bus_away:  # also while the first connection is still being made: silence at the end looks like a kill
            await asyncio.wait({sender}, timeout=FLUSH_WITHIN_S)
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)

    def _until_look_s(self) -> float:
        """The ranks of a host look at the same moments, so that their reports can travel together."""
        return until_next_s(self._clock.monotonic_s(), LOOK_EVERY_S, self._phase_s)

    def _glance_on(self, loop: asyncio.AbstractEventLoop, leaving: asyncio.Event) -> None:
        """A glance now and then, between looks; without anything to see, only a timer."""
        if leaving.is_set():
            return
        if self._glances:
            self._try("glance", self.glance)
            self._glanced += 1
        loop.call_later(gap_s(self._glanced) if self._glances else LOOK_EVERY_S, self._glance_on, loop, leaving)

    async def _send_all(self) -> None:
        """Connect, then send what is queued until the end. Once connected the client itself reconnects."""
        if self._connect is None:
            return
        retry_s = RETRY_FIRST_S
        while True:
            try:
                bus = await self._connect()
            except Exception as error:  # noqa: BLE001 - whatever a client library raises, the job goes on
                self._bus_away = True
                complaints.failed("bus connection", error)
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, RETRY_MAX_S)
                continue
            complaints.worked("bus connection")
            retry_s = RETRY_FIRST_S
            serving = asyncio.create_task(self._serve(bus), name="goodput-agent-serve")
            try:
                await self._drain_queue(bus)
                return
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
                try:
                    await asyncio.wait_for(bus.close(), 0.5)
                except Exception as error:  # noqa: BLE001 - whatever a client library raises, the job goes on
                    complaints.failed("closing the bus", error)

    async def _drain_queue(self, bus: Bus) -> None:
        """Send in order, each until the server has it; returns when the rank is leaving and nothing is left."""
        while True:
            message = self.queue.head()
            if message is None:
                if self._ending:
                    return
                await self._more()
                continue
            try:
                await bus.publish(
                    message.subject,
                    message.data,
                    id=message.id,
                    source=self.identity.source,
                    component=message.component,
                    time=message.time,
                )
            except BusUnavailable as error:  # after waiting for the client, which reconnects by itself
                self._bus_away = True
                complaints.failed("publishing", error)
                await asyncio.sleep(RETRY_FIRST_S)
                continue
            except Exception as error:  # noqa: BLE001 - a message that cannot be sent must not hold up the others
                complaints.failed("publishing", error)
            else:
                complaints.worked("publishing")
                self._bus_away = False
            self.queue.done(message)

    async def _more(self) -> None:
        assert self._wake is not None
        self._wake.clear()
        if not len(self.queue) and not self._ending:
            await self._wake.wait()

    async def _serve(self, bus: Bus) -> None:
        async def answer(message: Message) -> msgspec.Struct:
            if not isinstance(message.data, AgentCommand):
                return refusal(self.identity, message.data, self._clock.now())
            return self._commands.handle(message.data, self._clock.now())

        mine = self.identity
        retry_s = RETRY_FIRST_S
        while True:
            try:
                await bus.serve(subjects.agent(mine.fabric, mine.job, mine.rank), answer)
            except Exception as error:  # noqa: BLE001 - a connection may break at any point of subscribing
                complaints.failed("listening for commands", error)
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, RETRY_MAX_S)
            else:
                complaints.worked("listening for commands")
                return

    # -- helpers -------------------------------------------------------------------------------------------------------

    def _report(self, progress: RankProgress, *, alone: bool) -> None:
        message = self._message("rank_progress", progress)
        if alone or self._handover is None or not self._handover.offer(message, progress):
            self._untaken((message,))

    def _untaken(self, reports: Sequence[Outgoing]) -> None:
        for each in reports:
            self.queue.put(each)
        if self._wake is not None:
            self._wake.set()

    def _put(self, event: str, data: msgspec.Struct, *, vital: bool = False) -> None:
        self.queue.put(self._message(event, data), vital=vital)
        if self._wake is not None:
            self._wake.set()

    def _message(self, event: str, data: msgspec.Struct) -> Outgoing:
        self._sent += 1
        at = getattr(data, "at", None)
        mine = self.identity
        return Outgoing(
            subject=subjects.job(mine.fabric, mine.job, event),
            data=data,
            id=f"{mine.incarnation}/{event}/{self._sent}",
            component=rank_id(mine.job, mine.rank),
            time=at if isinstance(at, datetime) else self._clock.now(),
        )

    def _try(self, what: str, do: Callable[[], T]) -> T | None:
        try:
            done = do()
        except Exception as error:  # noqa: BLE001 - one failing part must not end the others
            complaints.failed(what, error)
            return None
        complaints.worked(what)
        return done


class ReporterThread:
    """Runs a Reporter on its own daemon thread. A process that is killed leaves no word; one that ends says so."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving: asyncio.Event | None = None
        self._last_words = (True, "")
        self._thread = threading.Thread(target=self._run, name="goodput-agent", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, clean: bool, reason: str) -> None:
        """Say the last words and end; waits for at most about two seconds."""
        self._last_words = (clean, reason)
        loop, leaving = self._loop, self._leaving
        if loop is None or leaving is None or not self._thread.is_alive():
            return
        try:
            loop.call_soon_threadsafe(leaving.set)
        except RuntimeError:  # the loop has ended by itself
            return
        self._thread.join(FLUSH_WITHIN_S + 1.0)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - the thread's last line of defence
            complaints.failed("agent thread", error)

    async def _main(self) -> None:
        self._leaving = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        await self._reporter.run(self._leaving, lambda: self._last_words)
