"""NCCL's view of a job, asked through its status socket on this host.

A query costs the job: every process of it answers. It is asked only while a rank that uses NCCL is registered here, every
30 s from the host of the job's first rank, and more often when a fresh flight-recorder dump says that steps have stopped.

The socket is on the loopback of the job's network namespace. Several jobs of a host share the port; whose answer it is
shows by the processes in it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

from goodput_collector.adapters.ras_client import Answer, NotRas, ask, is_local
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.domain.changes import Changes
from goodput_collector.domain.ras import Malformed, RasReport, parse_json, parse_text
from goodput_collector.domain.ras_places import Places, states_of
from goodput_collector.domain.ras_progress import Pace, RasWatch
from goodput_common.contracts import ids
from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.subjects import token
from goodput_common.contracts.telemetry import Source, State
from goodput_common.runtime.clock import Clock

RAS_WAITS_S = 5.0
STALL_HINT_S = 120.0
_SWITCH_ON = "NCCL 2.24 or newer, without NCCL_RAS_ENABLE=0; GOODPUT_RAS_ADDRESS as the job's NCCL_RAS_ADDR"


class RasReader:
    """See `goodput_collector.application.ports.SourceReader`."""

    source = Source.RAS
    instance = ""
    interval_s = 2.0

    def __init__(
        self,
        address: str,
        *,
        host: str,
        run_dir: Path,
        ranks: Callable[[], Iterable[RankRegistered]],
        clock: Clock,
        pace: Pace | None = None,
        deadline_s: float = 15.0,
        query: Callable[..., Answer] = ask,
    ) -> None:
        self.deadline_s = deadline_s
        name, _, port = address.rpartition(":")
        self._address = (name.strip("[]") or "127.0.0.1", int(port))
        self._host = host
        self._run_dir = run_dir
        self._ranks = ranks
        self._clock = clock
        self._pace = pace or Pace()
        self._query = query
        self._watch = RasWatch()
        self._changes = Changes(full_every_s=120.0, volatile=("for_s",))
        self._asked_s = float("-inf")
        self._json = True
        self._trouble = ""
        self._bad: set[str] = set()
        self._covered: list[str] = []

    def open(self) -> None:
        """Each query is a connection of its own."""

    def wake_fd(self) -> int | None:
        return None

    def read(self) -> Reading:
        ranks = [each for each in self._ranks() if not each.backend or "nccl" in each.backend]
        if not ranks:
            self._covered = []
            return Reading(trouble="no rank that uses NCCL is registered here: nobody is asked", covered=[])
        now_s = self._clock.monotonic_s()
        wait_s = self._pace.wait_s(leads=any(each.rank == 0 for each in ranks), stalled=self._stalled(ranks))
        if wait_s is None:
            return Reading(trouble="the host of the job's first rank asks for all of it", covered=[])
        if now_s - self._asked_s < wait_s:
            return Reading(trouble=self._trouble, covered=self._covered)
        self._asked_s = now_s
        report = self._ask()
        now = self._clock.now()
        places = Places(ranks, is_local)
        job = places.job_of(report)
        followed = self._watch.see(report, now_s)
        states = states_of(report, followed, job, places, self._host, now)
        self._covered = list(dict.fromkeys(state.component for state in states))
        told = self._changes.of([*states, *self._recovered(states, now)], now_s) if report.complete else []
        return Reading(samples=told, trouble=self._trouble, covered=self._covered)

    def close(self) -> None:
        """Nothing is held open."""

    def _ask(self) -> RasReport:
        host, port = self._address
        try:
            answer = self._query(host, port, json=self._json, wait_s=RAS_WAITS_S, deadline_s=self.deadline_s - 2)
        except ConnectionRefusedError:
            raise Absent(f"no NCCL answers on {host}:{port}", remedy=_SWITCH_ON) from None
        except (OSError, NotRas) as error:
            raise Unreadable(f"RAS on {host}:{port}: {error}", remedy=_SWITCH_ON) from None
        report, self._trouble = self._parsed(answer)
        if not answer.ended:
            self._trouble = "RAS broke off in the middle of its answer: nothing is concluded from it"
        elif report.timeouts:
            self._trouble = f"RAS waited in vain for parts of the job ({report.timeouts} time-outs)"
        return report

    def _parsed(self, answer: Answer) -> tuple[RasReport, str]:
        if not answer.json:
            report = parse_text(answer.text)
            report.complete = report.complete and answer.ended
            lost = report.lines - report.understood
            return report, f"{lost} lines of RAS's answer could not be understood" if lost else ""
        try:
            return parse_json(answer.text), ""
        except Malformed as error:
            if not answer.ended:
                return RasReport(), ""
            self._json = False  # this NCCL writes it wrong: its text is read from now on
            self._asked_s = float("-inf")
            return RasReport(), f"this NCCL's JSON is malformed ({error}); its text is read instead"

    def _stalled(self, ranks: Iterable[RankRegistered]) -> bool:
        """Has an agent of one of these jobs dumped its flight recorder just now? It does so when steps stop."""
        oldest = time.time() - STALL_HINT_S
        for job in {each.job for each in ranks}:
            try:
                with os.scandir(self._run_dir / "dumps" / token(job)) as entries:
                    if any(entry.stat().st_mtime > oldest for entry in entries):
                        return True
            except OSError:
                continue
        return False

    def _recovered(self, states: list[State], now: datetime) -> list[State]:
        """Those that were missing the last time and are not any more: told once."""
        bad = {state.component for state in states if state.name == "ras_process"}
        gone, self._bad = self._bad - bad, bad
        return [
            State(component=component, name="ras_process", observed_at=now, value="ok", attrs={"host": self._host})
            for component in sorted(gone)
            if component != ids.host_id(self._host)
        ]
