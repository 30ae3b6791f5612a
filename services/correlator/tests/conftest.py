"""Fixtures shared by the correlator's unit tests. The domain tests write small logs by hand with `Script`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from goodput_common.contracts.job import (
    FlightRecorderDump,
    GroupProgress,
    RankExited,
    RankProgress,
    RankRegistered,
    StallSuspected,
)
from goodput_common.contracts.telemetry import CollectorHeartbeat, Event, EventName, Sample, Severity, State
from goodput_common.contracts.verdict import Verdict
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.incidents import Incidents
from goodput_topology.generate import lab
from goodput_topology.graph import Fabric

START = datetime(2026, 3, 2, 8, 0, 0, tzinfo=UTC)
WORLD = "0"


@dataclass
class Script:
    """A log in the making: a job of `hosts` x 2 ranks on the lab's fabric, one report a second and rank.

    Clocks of hosts are off by up to 2 s (`skew_s`), which must not matter.
    """

    hosts: int = 4
    step_s: float = 0.1
    collectives_per_step: int = 4
    job: str = "j"
    fabric: Fabric = field(default_factory=lambda: lab(4, 1))
    log: list[Observed] = field(default_factory=list)
    skew_s: tuple[float, ...] = (1.9, -1.7, 0.4, 0.0)

    @property
    def world(self) -> int:
        return self.hosts * 2

    def host(self, rank: int) -> str:
        return f"h{rank // 2}"

    def clock(self, host: str, at_s: float) -> datetime:
        return START + timedelta(seconds=at_s + self.skew_s[int(host[1:]) % len(self.skew_s)])

    def put(self, key: str, host: str, source: str, at_s: float, fact: object, late_s: float = 0.01) -> Observed:
        seen_at = getattr(fact, "observed_at", None) or getattr(fact, "at")  # noqa: B009 - each fact has one of the two
        received_at = START + timedelta(seconds=at_s + late_s)
        seen = Observed(key, host, source, seen_at, received_at, fact)  # type: ignore[arg-type]
        self.log.append(seen)
        return seen

    def register(self, at_s: float = 0.0, generation: int = 0) -> None:
        for rank in range(self.world):
            host = self.host(rank)
            fact = RankRegistered(
                fabric=self.fabric.name,
                job=self.job,
                rank=rank,
                world_size=self.world,
                host=host,
                pid=1000 + rank + generation * 100,
                at=self.clock(host, at_s),
                generation=generation,
                local_rank=rank % 2,
            )
            self.put(f"reg/{generation}/{rank}", host, "agent", at_s, fact)

    def progress(
        self,
        rank: int,
        at_s: float,
        *,
        step: int,
        age_s: float,
        joined: int,
        finished: int,
        steps: int = 0,
        generation: int = 0,
        phase: str = "forward",
        inside: str = "",
        extra: tuple[GroupProgress, ...] = (),
        paused: bool = False,
    ) -> None:
        host = self.host(rank)
        at = self.clock(host, at_s)
        fact = RankProgress(
            fabric=self.fabric.name,
            job=self.job,
            rank=rank,
            host=host,
            seq=round(at_s * 1000) + 1,
            at=at,
            generation=generation,
            step=step,
            step_at=at - timedelta(seconds=age_s) if step >= 0 else None,
            steps=steps,
            step_ms_mean=self.step_s * 1000,
            step_ms_max=self.step_s * 1100,
            phase=phase,
            in_collective=inside,
            groups=(
                GroupProgress(group=WORLD, ranks=tuple(range(self.world)), last_enqueued=joined, last_completed=finished),
                *extra,
            ),
            paused=paused,
        )
        self.put(f"prog/{generation}/{rank}/{at_s:.2f}", host, "agent", at_s, fact)

    def run(self, from_s: float, to_s: float, *, first_step: int = 0, generation: int = 0) -> int:
        """Steps move. Returns the last step finished at `to_s`."""
        per_s = round(1 / self.step_s)
        for second in range(int(from_s), int(to_s)):
            for rank in range(self.world):
                at_s = second + 0.5 + rank * 0.05
                done = first_step + int((at_s - from_s) / self.step_s)
                count = done * self.collectives_per_step
                self.progress(
                    rank,
                    at_s,
                    step=done,
                    age_s=0.04,
                    joined=count + 2,
                    finished=count + 2,
                    steps=per_s,
                    generation=generation,
                )
        return first_step + int((to_s - from_s) / self.step_s)

    def stand(
        self,
        from_s: float,
        to_s: float,
        *,
        step: int,
        joined: dict[int, int] | None = None,
        finished: dict[int, int] | None = None,
        silent: tuple[int, ...] = (),
        generation: int = 0,
        phases: dict[int, str] | None = None,
        waiting: bool = True,
        extra: dict[int, tuple[GroupProgress, ...]] | None = None,
        paused: bool = False,
    ) -> None:
        """Steps stand still since `from_s`: all have joined one more collective than they finished, but for `joined`."""
        usual = step * self.collectives_per_step + 3
        for second in range(int(from_s), int(to_s)):
            for rank in range(self.world):
                at_s = second + 0.5 + rank * 0.05
                if rank in silent or at_s < from_s:
                    continue
                mine = (joined or {}).get(rank, usual)
                self.progress(
                    rank,
                    at_s,
                    step=step,
                    age_s=at_s - from_s,
                    joined=mine,
                    finished=(finished or {}).get(rank, usual - 1),
                    generation=generation,
                    phase=(phases or {}).get(rank, "gradients"),
                    inside="all_reduce" if waiting and mine == usual else "",
                    extra=(extra or {}).get(rank, ()),
                    paused=paused,
                )

    def sample(self, host: str, at_s: float, fact: Sample, source: str = "kernel_log", late_s: float = 0.05) -> None:
        self.put(f"{host}/{source}/{len(self.log)}", host, source, at_s, fact, late_s)

    def event(
        self,
        component: str,
        name: EventName,
        at_s: float,
        *,
        host: str,
        source: str = "kernel_log",
        severity: Severity = Severity.ERROR,
        excerpt: str = "",
        count: int = 1,
        late_s: float = 0.05,
        **attrs: str,
    ) -> None:
        fact = Event(
            component=component,
            name=name,
            observed_at=self.clock(host, at_s),
            severity=severity,
            excerpt=excerpt or f"{name.value} on {component}",
            attrs=attrs,
            count=count,
        )
        self.sample(host, at_s, fact, source, late_s)

    def xid(self, host: str, pci: str, number: int, at_s: float, *, impact: str = "reset", **attrs: str) -> None:
        text = f"NVRM: Xid (PCI:{pci}): {number}, pid='<unknown>', name=<unknown>"
        self.event(
            f"gpu:{host}/{pci}",
            EventName.XID,
            at_s,
            host=host,
            severity=Severity.FATAL,
            excerpt=text,
            xid=str(number),
            pci=pci,
            impact=impact,
            **attrs,
        )

    def state(self, host: str, component: str, name: str, value: str, at_s: float, source: str, **attrs: str) -> None:
        fact = State(component=component, name=name, observed_at=self.clock(host, at_s), value=value, attrs=attrs)
        self.sample(host, at_s, fact, source)

    def beat(self, host: str, at_s: float, seq: int) -> None:
        fact = CollectorHeartbeat(
            fabric=self.fabric.name, host=host, boot_id="b", seq=seq, at=self.clock(host, at_s), interval_s=5.0
        )
        self.put(f"beat/{host}/{seq}", host, "heartbeat", at_s, fact)

    def beats(self, to_s: float, *, without: tuple[str, ...] = ()) -> None:
        for index in range(self.hosts):
            host = f"h{index}"
            if host not in without:
                for number in range(int(to_s // 5) + 1):
                    self.beat(host, number * 5.0 + 0.3, number + 1)

    def exited(self, rank: int, at_s: float, *, clean: bool, reason: str = "", generation: int = 0) -> None:
        host = self.host(rank)
        fact = RankExited(
            fabric=self.fabric.name,
            job=self.job,
            rank=rank,
            host=host,
            at=self.clock(host, at_s),
            generation=generation,
            clean=clean,
            reason=reason,
        )
        self.put(f"exit/{generation}/{rank}", host, "agent", at_s, fact)

    def suspected(self, rank: int, at_s: float, step: int, frames: tuple[str, ...] = ()) -> None:
        host = self.host(rank)
        fact = StallSuspected(
            fabric=self.fabric.name,
            job=self.job,
            rank=rank,
            host=host,
            at=self.clock(host, at_s),
            step=step,
            stalled_for_ms=2000,
            frames=frames,
        )
        self.put(f"stall/{rank}", host, "agent", at_s, fact)

    def dump(self, dump: FlightRecorderDump, at_s: float) -> None:
        self.put(f"dump/{dump.rank}", dump.host, "flight_recorder", at_s, dump)

    # what comes of it

    def verdicts(self, to_s: float, log: list[Observed] | None = None) -> list[Verdict]:
        incidents = Incidents(self.fabric)
        for each in self.log if log is None else log:
            incidents.observe(each)
        return incidents.tick(START + timedelta(seconds=to_s))


@pytest.fixture
def script() -> Callable[..., Script]:
    """`script()` begins a log; `Script` says what can be written."""
    return Script


@pytest.fixture
def start() -> datetime:
    return START
