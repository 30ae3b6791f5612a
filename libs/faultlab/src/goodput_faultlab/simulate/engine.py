"""`Simulation`: a fabric, a job, faults and noise in simulated time, driven from outside.

Whoever drives it decides how fast time goes: a demo calls `advance(now)` several times a second and publishes what
comes out; an offline run takes `records(until)` as fast as the CPU gives. `react` and `answer` close the loop: the
simulated launcher carries out what recovery has decided, and the simulated agents answer commands. Equal specification,
seed and calls give equal output.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter

import msgspec

from goodput_common.bus.ports import Message
from goodput_common.contracts import ids, subjects
from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.recovery import (
    AgentCommand,
    AgentCommandKind,
    AgentReply,
    AgentReplyStatus,
    PlanState,
    RecoveryUpdate,
)
from goodput_common.contracts.registry import BY_STRUCT
from goodput_common.contracts.telemetry import Source
from goodput_common.contracts.verdict import ActionKind, FaultClass
from goodput_faultlab.ledger import LedgerEntry
from goodput_faultlab.simulate import benign, faults, lines
from goodput_faultlab.simulate.clockwork import Clockwork, Outgoing
from goodput_faultlab.simulate.collectors import Collectors
from goodput_faultlab.simulate.faults.link import RETRIES_LAST_S
from goodput_faultlab.simulate.faults.model import Act, Deed, Emission, Exit, Fault
from goodput_faultlab.simulate.flows import Flows
from goodput_faultlab.simulate.launcher import Launcher, Reaction
from goodput_faultlab.simulate.measures import Measures
from goodput_faultlab.simulate.noise import Background, Noise
from goodput_faultlab.simulate.probing import Probing
from goodput_faultlab.simulate.processes import Processes
from goodput_faultlab.simulate.spec import SimulationSpec
from goodput_faultlab.simulate.training import Training
from goodput_topology.snapshot import to_snapshots

TOPOLOGY_SOURCE = "simulation"
PLANS_KEPT = 1024
CHUNK_S = 1.0
TAKES_S_MIN, TAKES_S_MAX = 0.0005, 0.004  # the broker, to put its time stamp on a message
RECONNECT_S = 0.5  # from link up to the first retransmission that gets through
WATCHDOG_ERROR = "torch.distributed.DistBackendError: watchdog timeout"


@dataclass(frozen=True, slots=True)
class Idle:
    """GPU time lost so far: all of the job's GPUs wait when one does. `redone_s` is work done twice, because steps resumed
    from a checkpoint older than the last step; `slowed_s` is what steps took beyond the usual."""

    gpus: int
    seconds: float
    redone_s: float = 0.0
    slowed_s: float = 0.0

    @property
    def gpu_hours(self) -> float:
        return self.gpus * (self.seconds + self.redone_s + self.slowed_s) / 3600

    def __str__(self) -> str:
        redone = f" and redoing {self.redone_s:.1f} s of work" if self.redone_s >= 0.05 else ""
        slowed = f" and slow for {self.slowed_s:.1f} s more" if self.slowed_s >= 0.05 else ""
        return f"{self.gpus} GPUs idle for {self.seconds:.1f} s{redone}{slowed} = {self.gpu_hours:.2f} GPU-hours"


class Simulation:
    """See the module. `now` is simulated true time; `ledger` the truth, complete from the start."""

    def __init__(self, spec: SimulationSpec, seed: int) -> None:
        self.spec = spec
        self.seed = seed
        self._clockwork = Clockwork(spec.start, seed, spec.transport)
        self._collectors = Collectors(self._clockwork, spec.fabric.name, spec.transport.clock_offset_s_max)
        self._training = Training(spec, self._clockwork, self._collectors, self._blocking, self._watchdogs_bark)
        self._processes = Processes(self._training, self._clockwork, self._collectors)
        self._noise = Noise(spec, self._clockwork, self._collectors)
        flows = Flows(spec.fabric, self._training.layout)
        self._measures = Measures(spec, self._clockwork, self._collectors, self._training, flows, seed)
        self._probing = Probing(spec.fabric, self._clockwork, self._collectors, flows)
        self._plans: dict[str, Reaction | None] = {}
        self._replies: dict[str, AgentReply] = {}
        self._tokens: dict[int, int] = {}
        self._faults = [
            faults.plan(each, spec.fabric, self._training.layout, self._clockwork.rng(f"fault/{number}"))
            for number, each in enumerate(spec.faults)
        ]
        self._faults += [
            benign.plan(each, spec, self._training.layout, self._clockwork.rng(f"benign/{number}"))
            for number, each in enumerate(spec.benign)
        ]
        self._ledger = [self._entry(number, fault) for number, fault in enumerate(self._faults)]
        self._launcher = Launcher(spec, self._clockwork, self._training, self._faults, self._note_cleared)
        self._broken: set[int] = set()  # link faults whose connections are past retrying
        self._schedule()

    # ------------------------------------------------------------------------------------------------- reading

    @property
    def now(self) -> datetime:
        return self._clockwork.now

    @property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        """Every fault with its truth, also of those that are still to come; `cleared_at` once it is gone. Look-alikes have
        no entry."""
        return tuple(self._ledger[: len(self.spec.faults)])

    @property
    def background(self) -> tuple[LedgerEntry, ...]:
        """Faults on hosts of other jobs: whoever names them is right, and this job has nothing to do with them."""
        return tuple(self._background_entry(number, each) for number, each in enumerate(self._noise.background))

    @property
    def step(self) -> int:
        return self._training.step

    @property
    def generation(self) -> int:
        return self._training.generation

    @property
    def stalled_since(self) -> datetime | None:
        """When the last step ended, while steps stand still because of a fault."""
        return self._training.stalled_since

    @property
    def hosts(self) -> tuple[str, ...]:
        return self._training.layout.hosts

    @property
    def idle(self) -> Idle:
        since = self._training.stalled_since
        waiting_s = (self.now - since).total_seconds() if since is not None else 0.0
        training = self._training
        return Idle(training.layout.world_size, training.idle_s + waiting_s, training.redone_s, training.slowed_s)

    # ------------------------------------------------------------------------------------------------- driving

    def advance(self, to: datetime) -> list[Outgoing]:
        """Let time pass up to `to`. Returns what was published meanwhile, ordered by `at`."""
        return self._clockwork.run_until(to)

    def records(self, until: datetime) -> Iterator[Message]:
        """The run up to `until` as the broker's log would have it: `received_at` by one clock, numbered by stream."""
        random = self._clockwork.rng("broker").random
        sequences: dict[str, int] = {}
        streams: dict[str, str] = {}
        held: list[tuple[datetime, int, Outgoing]] = []
        count = 0
        while self.now < until:
            to = min(until, self.now + timedelta(seconds=CHUNK_S))
            for out in self.advance(to):
                count += 1
                held.append((out.at + timedelta(0, TAKES_S_MIN + (TAKES_S_MAX - TAKES_S_MIN) * random()), count, out))
            held.sort()
            ends = len(held) if to == until else bisect_right(held, to - timedelta(seconds=0.01), key=itemgetter(0))
            ready, held = held[:ends], held[ends:]
            for received_at, _, out in ready:
                stream = streams.get(out.subject, "")
                if not stream:
                    stream = streams[out.subject] = subjects.stream_of(out.subject).name
                sequences[stream] = sequences.get(stream, 0) + 1
                yield Message(
                    id=out.id,
                    type=BY_STRUCT[type(out.struct)].name,
                    source=out.source,
                    subject=out.subject,
                    time=out.time,
                    data=out.struct,
                    stream=stream,
                    sequence=sequences[stream],
                    received_at=received_at,
                )

    def react(self, update: RecoveryUpdate) -> Reaction | None:
        """The launcher hears of a plan. Only one that is `executing` for this job does anything, and each only once;
        None when nothing is to be done. Fencing is the executor's business: a launcher does what it is told by the
        newest token."""
        if update.state is not PlanState.EXECUTING or update.job != self.spec.job or update.fabric != self.spec.fabric.name:
            return None
        if update.plan in self._plans:
            return self._plans[update.plan]
        if len(self._plans) >= PLANS_KEPT:
            self._plans.pop(next(iter(self._plans)))
        reaction = self._launcher.react(update.action, update.target)
        self._plans[update.plan] = reaction
        return reaction

    def answer(self, command: AgentCommand) -> AgentReply | None:
        """What the agent of the rank says; None when nobody answers there (the process is gone or stopped)."""
        rank = command.rank
        if command.job != self.spec.job or not 0 <= rank < self._training.layout.world_size or self._training.mute(rank):
            return None
        if command.id in self._replies:
            return self._replies[command.id]
        status, reason = AgentReplyStatus.DONE, ""
        if command.fencing_token < self._tokens.get(rank, -1):
            status, reason = AgentReplyStatus.REFUSED, f"fencing token {command.fencing_token} is older than one seen"
        else:
            self._tokens[rank] = command.fencing_token
            if command.kind is AgentCommandKind.DUMP:
                self._training.agents.dump(rank, "asked")
            elif command.kind is AgentCommandKind.PAUSE:
                self._training.paused.add(rank)
                status, reason = AgentReplyStatus.ACCEPTED, "pausing at the next step boundary"
            else:
                self._training.paused.discard(rank)
        at = self._collectors.clock(self._training.layout.places[rank].host)
        reply = AgentReply(id=command.id, status=status, rank=rank, at=at, reason=reason, step=self._training.step)
        self._replies[command.id] = reply
        return reply

    # ------------------------------------------------------------------------------------------------- the plan of the run

    def _schedule(self) -> None:
        at, start = self._clockwork.at, self.spec.start
        for part in to_snapshots(self.spec.fabric, source=TOPOLOGY_SOURCE, version=1, at=start):
            at(start, partial(self._topology, part))
        switches = self._switches() if self.spec.switches else ()
        others = self._noise.others if self.spec.noise.other_jobs else ()
        self._collectors.start((*self.spec.hosts, *self.spec.spares, *others, *switches))
        self._measures.start(
            (*self.spec.hosts, *self.spec.spares) if self.spec.noise.counters else (),
            switches if self.spec.noise.counters else (),
        )
        if self.spec.probes:
            self._probing.start()
        self._lose_collectors()
        self._processes.start((*self.spec.hosts, *self.spec.spares))
        for host in (*self.spec.hosts, *self.spec.spares) if self.spec.fresh_hosts else ():
            at(start, partial(self._collectors.add, host, Source.KERNEL_LOG, lines.boot(host)))
        self._noise.start()
        self._clockwork.after(0.2, self._training.begin)
        for number, fault in enumerate(self._faults):
            begins = start + timedelta(seconds=fault.spec.at_s)
            at(begins, partial(self._measures.begin, number, fault))
            at(begins, partial(self._drop, number, fault.drops, fault.waits_us))
            at(begins, partial(self._hit, fault))
            for each in fault.emissions:
                at(begins + timedelta(seconds=each.after_s), partial(self._tell, number, each))
            for act in fault.acts:
                at(begins + timedelta(seconds=act.after_s), partial(self._act, fault, act))
            for down_s, up_s in fault.outages:
                at(begins + timedelta(seconds=down_s), partial(self._drop, number, {fault.component or "": 1.0}))
                if not math.isinf(up_s):
                    at(begins + timedelta(seconds=up_s), partial(self._drop, number, {}))
                if not math.isinf(up_s):
                    up = partial(self._link_up, number, up_s - down_s)
                    at(begins + timedelta(seconds=up_s + RECONNECT_S), up)
            if fault.spec.clears_after_s is not None and not fault.outages:
                at(begins + timedelta(seconds=fault.spec.clears_after_s), partial(self._cleared, number))

    def _switches(self) -> tuple[str, ...]:
        """All switches of the fabric, by name."""
        return tuple(each.partition(":")[2] for each in self.spec.fabric.of_kind(ComponentKind.SWITCH))

    def _lose_collectors(self) -> None:
        """Some die in mid-incident, and nobody is there to start them again."""
        transport, rng = self.spec.transport, self._clockwork.rng("dead_collectors")
        if not transport.dead_collectors or not self.spec.faults:
            return
        fault = self._faults[0]
        others = [host for host in self.spec.hosts if host != fault.host]
        dying = rng.sample(others, min(transport.dead_collectors, len(others)))
        if transport.dead_on_culprit and fault.host is not None:
            dying = [fault.host, *dying][: transport.dead_collectors]
        for host in dying:
            dies_s = fault.spec.at_s + rng.uniform(0.0, transport.dead_after_s)
            self._clockwork.after(dies_s, partial(self._collectors.silence, host))

    def _topology(self, part: msgspec.Struct) -> None:
        name = self.spec.fabric.name
        number = getattr(part, "part", 1)
        self._clockwork.publish(
            subject=subjects.topology(name, TOPOLOGY_SOURCE),
            id=f"{name}/topology/{TOPOLOGY_SOURCE}/1/{number}",
            source=TOPOLOGY_SOURCE,
            struct=part,
            time=self.spec.start,
        )

    def _entry(self, number: int, fault: Fault) -> LedgerEntry:
        scenario = self.spec.scenario or f"{fault.fault_class.value}-{fault.flavour}"
        return LedgerEntry(
            id=f"{scenario}-{self.seed}-{number}",
            scenario=scenario,
            fault_class=fault.fault_class,
            component=fault.component,
            also_right=fault.also_right,
            ranks=fault.ranks,
            host=fault.host,
            job=self.spec.job,
            injected_at=self.spec.start + timedelta(seconds=fault.spec.at_s),
            note=fault.note,
            flavour=fault.flavour,
            severity=fault.spec.severity,
            cascade=fault.spec.cascade,
            explains=fault.symptoms,
        )

    def _background_entry(self, number: int, each: Background) -> LedgerEntry:
        fabric, at = self.spec.fabric, self.spec.start + timedelta(seconds=each.at_s)
        link = fabric.link_of(each.component) if each.down_s else None
        return LedgerEntry(
            id=f"{self.spec.scenario or 'background'}-{self.seed}-background-{number}",
            scenario="background",
            fault_class=FaultClass.LINK_FLAP if link else FaultClass.GPU_OFF_BUS,
            component=link or each.component,
            also_right=(fabric.ends_of(link) or ()) if link else (),
            host=ids.host_of(each.component),
            injected_at=at,
            cleared_at=at + timedelta(seconds=each.down_s) if link else None,
            background=True,
        )

    def _blocking(self) -> list[Fault]:
        return [fault for fault in self._faults if fault.active]

    # ------------------------------------------------------------------------------------------------- faults

    def _hit(self, fault: Fault) -> None:
        fault.active = True
        self._training.silent |= fault.silent
        for rank in fault.ranks if fault.stopped else ():
            self._processes.stopped(self._training.layout.places[rank])
        for each in fault.exits:
            self._clockwork.after(each.after_s, partial(self._exit, fault, each))
        self._training.reconsider()

    def _drop(
        self, number: int, drops: Mapping[ComponentId, float], waits_us: Mapping[ComponentId, float] | None = None
    ) -> None:
        self._probing.drops[number] = drops
        self._probing.waits_us[number] = waits_us or {}

    def _tell(self, number: int, each: Emission) -> None:
        if each.source is Source.SWITCH and not self.spec.switches:
            return  # nobody collects that here
        sample = self._collectors.add(each.host, each.source, each.make)
        if self._ledger[number].cleared_at is None:
            self._measures.told(each.host, number, each.source, sample)

    def _act(self, fault: Fault, act: Act) -> None:
        if act.deed is Deed.COLLECTOR_STOPS:
            self._collectors.silence(act.host)
        elif act.deed is Deed.COLLECTOR_STARTS:
            self._collectors.speak(act.host)
        elif act.deed is Deed.HOST_BOOTS:
            self._collectors.boot(act.host)
            self._measures.reboot(act.host)
        elif act.deed is Deed.CLOCK_JUMPS:
            self._collectors.jump(act.host, act.value)
        elif act.deed is Deed.JOB_RESTARTS:
            self._launcher.carry_out(ActionKind.SWAP_NODE, ids.host_id(act.host))
        elif act.deed is Deed.COUNTERS_RESET:
            self._collectors.counts.restart(act.host)
        elif fault.active:
            fault.blocks = True
            self._training.reconsider()

    def _exit(self, fault: Fault, end: Exit) -> None:
        if not fault.active:
            return
        self._end_process(end.rank, end.reason, clean=end.clean)

    def _end_process(self, rank: int, reason: str, *, clean: bool = False) -> None:
        place = self._training.layout.places[rank]
        if rank in self._training.gone:
            return
        self._training.agents.leave(rank, reason, clean=clean)
        if not clean:  # after a clean end the registration is taken away, and nobody looks for the process
            self._processes.gone(place)

    def _link_up(self, number: int, lasted_s: float) -> None:
        """The link is back. Connections live on if the outage was shorter than the retries last."""
        fault = self._faults[number]
        if lasted_s > RETRIES_LAST_S:
            self._broken.add(number)
        if not fault.active:
            return
        if self._link_is_good(fault):
            self._note_cleared(number)
            if number not in self._broken:
                fault.active = False
                self._training.reconsider()
        elif number not in self._broken:
            fault.active = False
            self._training.reconsider()
            again_s = min(down for down, _ in fault.outages if down > self._since(fault))
            begins = self.spec.start + timedelta(seconds=fault.spec.at_s + again_s)
            self._clockwork.at(begins, lambda: self._hit(fault))

    def _since(self, fault: Fault) -> float:
        return (self.now - self.spec.start).total_seconds() - fault.spec.at_s

    def _link_is_good(self, fault: Fault) -> bool:
        """Up now, and no further outage to come."""
        return bool(fault.outages) and all(up <= self._since(fault) for _, up in fault.outages)

    def _cleared(self, number: int) -> None:
        self._faults[number].active = False
        self._note_cleared(number)
        self._training.silent -= self._faults[number].silent
        self._training.reconsider()

    def _note_cleared(self, number: int) -> None:
        if self._ledger[number].cleared_at is None:
            self._measures.end(number)
            self._drop(number, {})
            self._ledger[number] = msgspec.structs.replace(self._ledger[number], cleared_at=self.now)

    def _watchdogs_bark(self) -> None:
        """The collective timeout: every rank that still runs says so and ends, and the driver tears down its channels."""
        if not self.spec.exits_after_watchdog:
            return
        rng = self._clockwork.rng("watchdog")
        seq = max(1, self._training.step + 2)
        for place in self._training.layout.places:
            if self._training.mute(place.rank):
                continue
            said = lines.watchdog(self.spec.job, place, seq, "ALLREDUCE", int(self.spec.watchdog_s * 1000))
            torn = lines.victim(self.spec.fabric, place.gpu, place.pid)
            at_s = rng.uniform(0.0, 0.5)
            after = self._clockwork.after
            after(at_s, partial(self._collectors.add, place.host, Source.JOB_LOG, said))
            after(at_s + 1.0, partial(self._end_process, place.rank, WATCHDOG_ERROR))
            after(at_s + 1.2, partial(self._collectors.add, place.host, Source.KERNEL_LOG, torn))
