"""Diagnosis of files: dumps and logs as they lie there, without a server or a registration."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from goodput_collector.domain.kernel_log import KernelLogParser
from goodput_collector.domain.timestamps import LineClock
from goodput_common.contracts import ids
from goodput_common.contracts.job import FlightRecorderDump
from goodput_common.contracts.telemetry import Event, EventName
from goodput_common.contracts.verdict import FaultClass, Verdict
from goodput_common.flight_recorder import normalise, rank_from_name, read_dump
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.offline import diagnose_facts
from goodput_faultlab.hangs import Break, Fault, Layout, simulate

NOW = datetime(2026, 3, 2, tzinfo=UTC)
SHARED = Path(__file__).parents[4] / "shared" / "data"
GLOO = SHARED / "flight-recorder" / "gloo-4ranks-rank2-never-joins"
NVRX = SHARED / "public" / "nvrx-flight-recorder"
needs_shared = pytest.mark.skipif(not GLOO.exists(), reason="the captures in ../shared are not here")


def seen(dumps: Iterable[FlightRecorderDump]) -> list[Observed]:
    return [Observed(d.origin, d.host, "flight_recorder", d.at, d.at, d) for d in dumps]


def ranks(verdicts: Iterable[Verdict], above: float = 0.0) -> set[int]:
    return {rank for v in verdicts if v.confidence > above for c in v.culprits for rank in c.ranks}


def events(*facts: Event, host: str = "h1") -> list[Observed]:
    return [Observed(f"log:{n}", host, "kernel_log", f.observed_at, f.observed_at, f) for n, f in enumerate(facts)]


def carrier(nic: str, name: EventName, at_s: float, count: int = 1) -> Event:
    return Event(
        component=nic, name=name, observed_at=NOW + timedelta(seconds=at_s), count=count, attrs={"by": "systemd-networkd"}
    )


def test_a_hang_in_dumps_names_its_rank_with_evidence_from_the_files() -> None:
    hang = simulate(Layout(tensor=2, pipeline=2, data=2), [Fault(rank=3, kind=Break.HOST, at=11)])
    dumps = [normalise(hang.raw(r), fabric="f", job="run", rank=r, host=f"n{r}", origin=f"/d/rank_{r}") for r in range(8)]
    (verdict,) = diagnose_facts(seen(dumps), now=NOW)
    assert (verdict.culprit.component, verdict.culprit.host, verdict.job) == ("rank:run/3", "n3", "run")
    assert verdict.evidence[0].event_id == "/d/rank_3"
    assert verdict.confidence > 0.85


def test_a_missing_dump_gets_a_verdict_of_its_own_at_half_confidence() -> None:
    hang = simulate(Layout(tensor=4, pipeline=1, data=1), [Fault(rank=3, kind=Break.HOST, at=5)])
    dumps = [normalise(hang.raw(r), fabric="f", job="run", rank=r, host="", origin=f"rank_{r}") for r in (1, 2, 3)]
    first, second = diagnose_facts(seen(dumps), now=NOW)
    assert (ranks([first]), ranks([second])) == ({3}, {0})
    assert first.confidence > 0.8
    assert second.confidence <= 0.5


def test_the_same_files_give_the_same_bytes_in_any_order() -> None:
    hang = simulate(Layout(tensor=2, pipeline=1, data=2), [Fault(rank=1, kind=Break.HOST, at=5)])
    facts = seen(normalise(hang.raw(r), fabric="f", job="j", rank=r, host="", origin=f"rank_{r}") for r in range(4))
    facts += events(carrier("nic:h1/ib6/1", EventName.LINK_DOWN, 0.0, count=6))
    assert msgspec.json.encode(diagnose_facts(facts, now=NOW)) == msgspec.json.encode(diagnose_facts(facts[::-1], now=NOW))


def test_a_link_lost_again_and_again_is_a_flap_and_a_single_loss_is_not() -> None:
    one = events(carrier("nic:h1/ib6/1", EventName.LINK_DOWN, 0.0), carrier("nic:h1/ib6/1", EventName.LINK_UP, 5.0))
    assert diagnose_facts(one, now=NOW) == []
    six = events(carrier("nic:h1/ib6/1", EventName.LINK_DOWN, 0.0, count=6), carrier("nic:h1/ib6/1", EventName.LINK_UP, 5.0))
    (verdict,) = diagnose_facts(six, now=NOW)
    assert (verdict.fault_class, verdict.culprit.component, verdict.job) == (FaultClass.LINK_FLAP, "nic:h1/ib6/1", None)


@pytest.mark.parametrize("number", ["13", "31", "43", "45", "63"])
def test_application_errors_in_a_log_are_nobodys_fault(number: str) -> None:
    impact = {"45": "victim", "43": "ignore", "63": "ignore"}.get(number, "app")
    fact = Event(component="gpu:h1/0000:1b:00", name=EventName.XID, observed_at=NOW, attrs={"xid": number, "impact": impact})
    assert diagnose_facts(events(fact), now=NOW) == []


def test_nothing_at_all_is_no_verdict() -> None:
    assert diagnose_facts([], now=NOW) == []


def test_a_stall_that_dumps_do_not_explain_is_undetermined() -> None:
    hang = simulate(Layout(tensor=4, pipeline=1, data=2), [Fault(rank=2, kind=Break.DEVICE, at=5)], ahead=8)
    dumps = [normalise(hang.raw(r), fabric="f", job="j", rank=r, host="", origin=f"rank_{r}") for r in range(8)]
    (verdict,) = diagnose_facts(seen(dumps), now=NOW)
    assert verdict.fault_class is FaultClass.UNDETERMINED
    assert verdict.culprits == ()


def folder(path: Path, without: Iterable[int] = ()) -> list[Observed]:
    dumps = []
    for file in sorted(path.iterdir()):
        name = rank_from_name(file.name)
        if name is not None and file.suffix != ".log" and name.rank not in set(without):
            dumps.append(read_dump(file.read_bytes(), fabric="f", job="j", rank=name.rank, host="", origin=file.name))
    return seen(dumps)


@needs_shared
@pytest.mark.parametrize(
    ("path", "truth"),
    [(GLOO, {2}), (NVRX / "gpu_error_1st", {12, 14}), (NVRX / "lock_gil_1st", {9, 14})],
    ids=["gloo", "gpu_error", "lock_gil"],
)
def test_real_dumps_name_their_culprits_and_nobody_else(path: Path, truth: set[int]) -> None:
    verdicts = diagnose_facts(folder(path), now=NOW)
    assert ranks(verdicts) == truth
    for missing in range(len(folder(path))):
        verdicts = diagnose_facts(folder(path, without=[missing]), now=NOW)
        assert ranks(verdicts) >= truth
        assert ranks(verdicts, above=0.5) <= truth
        assert all(a.confidence <= 0.5 for v in verdicts for a in v.alternatives)


def parsed(path: Path, host: str) -> list[Observed]:
    reader = KernelLogParser(host=host, clock=LineClock(reference=NOW))
    found = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines()):
        event = reader.feed(line)
        if event is not None:
            at = event.observed_at
            found.append(
                Observed(f"{path.name}:{number}", ids.host_of(event.component) or host, "kernel_log", at, at, event)
            )
    return found


@needs_shared
def test_a_real_log_of_gsp_time_outs_names_the_gpu_by_its_address() -> None:
    (verdict,) = diagnose_facts(parsed(SHARED / "public" / "gpud" / "dmesg-with-xid-119.log", "box"), now=NOW)
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.GPU_DRIVER, "gpu:box/0000:9b:00")


@needs_shared
def test_a_real_syslog_without_flaps_gives_no_verdict() -> None:
    assert diagnose_facts(parsed(SHARED / "public" / "azurehpc" / "0flap_syslog", "box"), now=NOW) == []


@needs_shared
def test_a_real_syslog_with_six_flaps_names_the_interface_and_its_host() -> None:
    (verdict,) = diagnose_facts(parsed(SHARED / "public" / "azurehpc" / "1dev_6flap_syslog", "box"), now=NOW)
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.LINK_FLAP, "nic:jplc7eb7-vm-0/ib6/1")
    assert verdict.culprit.host == "jplc7eb7-vm-0"
    assert verdict.confidence > 0.7
