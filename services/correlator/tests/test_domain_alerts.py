"""Every alert that is not the root says what explains it, is cited, or is counted among those that nothing explains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goodput_common.contracts.ids import host_id, kind_of
from goodput_common.contracts.job import RankExited
from goodput_common.contracts.telemetry import Event, EventName, Severity
from goodput_common.contracts.verdict import Evidence, Explained, FaultClass, Verdict
from goodput_correlator.domain.alerts import ALARMING, ALIKE_SHOWN, KINDS_SHOWN, Accounted, account, alerts, kind_in_words
from goodput_correlator.domain.case import Case, Observed, Placement, RankPlace, ordered
from goodput_correlator.domain.clues import ranks_on
from goodput_correlator.domain.finding import Finding
from goodput_topology.generate import h100_pod

START = datetime(2026, 3, 2, tzinfo=UTC)
STALL_S = 60.0
POD = h100_pod(hosts=4, spines=2)
USED = 3  # hosts of the job; the fourth is somebody else's
E, C = EventName, FaultClass
GPU = "gpu:h1/2"
NIC = POD.nics_of_gpu(GPU)[0]
LINK, PORT, LEAF = POD.link_of(NIC) or "", POD.peer_of(NIC) or "", POD.switch_of(NIC) or ""


@dataclass
class Log:
    """Lines of a job of 24 ranks on three hosts that stands still since `STALL_S`."""

    told: list[Observed] = field(default_factory=list)

    def line(
        self, component: str, name: EventName, at_s: float = STALL_S + 1, severity: Severity = Severity.ERROR, **attrs: str
    ) -> str:
        at, number = START + timedelta(seconds=at_s), len(self.told)
        fact = Event(
            component=component, name=name, observed_at=at, severity=severity, excerpt=f"line {number}", attrs=attrs
        )
        host = component.partition(":")[2].partition("/")[0]
        self.told.append(Observed(f"e{number}", host, "kernel_log", at, at, fact))
        return f"e{number}"

    def left(self, rank: int, reason: str, at_s: float = STALL_S + 1) -> None:
        at, host = START + timedelta(seconds=at_s), f"h{rank // 8}"
        fact = RankExited(fabric=POD.name, job="j", rank=rank, host=host, at=at, clean=False, reason=reason)
        self.told.append(Observed(f"x{len(self.told)}", host, "agent", at, at, fact))

    def case(self) -> Case:
        ranks = {n: RankPlace(n, f"h{n // 8}", 1000 + n, n % 8, None, n % 8, START) for n in range(USED * 8)}
        return Case(
            now=START + timedelta(seconds=STALL_S + 20), fabric=POD.name, job="j", observed=ordered(self.told), topology=POD,
            placement=Placement("j", USED * 8, 0, ranks), stalled_since=START + timedelta(seconds=STALL_S),
        )  # fmt: skip

    def account(self, component: str, fault: FaultClass, *cited: str, **given: Any) -> Accounted:
        case = self.case()
        evidence = tuple(
            Evidence(event_id=each.id, component=component, excerpt=getattr(each.fact, "excerpt", ""),
                     observed_at=each.observed_at, why="")
            for each in case.observed if each.id in cited
        )  # fmt: skip
        root = Finding(
            fault_class=fault, component=component, score=0.9, evidence=evidence, engine="e",
            ranks=ranks_on(case, component), host=given.pop("host", None), hardware=not component.startswith("rank:"),
        )  # fmt: skip
        return account(case, [root], given.get("aside", ()), given.get("already", ()))


def whys(found: Accounted) -> dict[str | None, str]:
    return {each.component: each.because for each in found.explained}


def test_a_line_that_is_cited_needs_no_explanation() -> None:
    log = Log()
    cited = log.line(GPU, E.XID, xid="79")
    assert log.account(GPU, C.GPU_OFF_BUS, cited) == Accounted()


def test_what_the_culprit_or_its_other_end_reports_besides_is_its_own_word() -> None:
    log = Log()
    cited = log.line(NIC, E.LINK_DOWN)
    log.line(NIC, E.NCCL_ASYNC_EVENT)
    log.line(PORT, E.LINK_DOWN)
    found = log.account(LINK, C.LINK_FLAP, cited)
    assert whys(found) == {NIC: f"{LINK} shows it itself", PORT: f"{LINK} shows it itself"}
    assert found.unexplained == ()


def test_a_channel_that_was_removed_names_its_cause_and_whose_that_is() -> None:
    log = Log()
    log.line("gpu:h1/3", E.XID, xid="45", impact="victim", cause="79")
    log.line("gpu:h2/0", E.XID, xid="45", impact="victim")
    found = whys(log.account(GPU, C.GPU_OFF_BUS))
    assert found["gpu:h1/3"] == "the line itself names its cause: Xid 79"
    assert found["gpu:h2/0"].endswith(f"over {GPU}")


def test_a_watchdog_that_barks_and_a_transfer_that_is_lost_name_whom_they_waited_for() -> None:
    log = Log()
    log.line("rank:j/3", E.NCCL_WATCHDOG)
    log.line("rank:j/4", E.NCCL_NET_ERROR, kind="connection_closed", peer=POD.attr(NIC, "addr"))
    log.line(POD.nics_of_gpu("gpu:h0/2")[0], E.NCCL_NET_ERROR, status="12")
    log.line(POD.nics_of_gpu("gpu:h0/3")[0], E.NCCL_NET_ERROR, status="5", severity=Severity.INFO)
    found = whys(log.account("rank:j/10", C.PROCESS_DEAD, host="h1"))
    assert found["rank:j/3"] == "it waited in a collective that rank:j/10 held up"
    assert found["rank:j/4"] == "it lost its connection to h1, where rank:j/10 is"
    assert "neither need be guilty" in found[POD.nics_of_gpu("gpu:h0/2")[0]]
    assert "flushed" in found[POD.nics_of_gpu("gpu:h0/3")[0]]


def test_a_transfer_that_is_lost_is_the_networks_where_the_network_is_to_blame() -> None:
    log = Log()
    far = POD.nics_of_gpu("gpu:h0/2")[0]
    log.line(far, E.NCCL_NET_ERROR, status="12")
    assert LINK in whys(log.account(LINK, C.LINK_FLAP))[far]


def test_ranks_that_end_because_of_others_are_explained_and_one_that_ends_for_a_reason_of_its_own_is_not() -> None:
    log = Log()
    for rank, reason in ((3, "RuntimeError: NCCL error: remote process exited"), (5, "ValueError: no such key")):
        log.line(f"rank:j/{rank}", E.PROCESS_EXITED, pid=str(1000 + rank), clean="false")
        log.left(rank, reason)
    found = log.account("rank:j/10", C.PROCESS_DEAD)
    assert whys(found) == {"rank:j/3": "it lost its peers, or gave up waiting for them, after rank:j/10"}
    assert len(found.unexplained) == 1 and "rank:j/5" in found.unexplained[0]


def test_a_host_that_is_down_explains_all_that_it_carries() -> None:
    log = Log()
    log.line("gpu:h1/4", E.GPU_LOST)
    log.line(PORT, E.LINK_DOWN)
    log.line("gpu:h2/4", E.GPU_LOST)
    found = log.account("host:h1", C.HOST_DOWN)
    assert set(whys(found)) == {"gpu:h1/4", PORT}
    assert len(found.unexplained) == 1 and "gpu:h2/4" in found.unexplained[0]


@pytest.mark.parametrize(
    ("component", "name", "attrs", "root", "fault", "because"),
    [
        ("gpu:h1/5", E.XID, {"xid": "74"}, GPU, C.GPU_OFF_BUS, "its NVLink partner"),
        ("gpu:h1/5", E.GPU_LOST, {}, "host:h1", C.GPU_DRIVER, "shows it itself"),
        ("host:h1", E.AER, {"severity": "fatal"}, GPU, C.GPU_OFF_BUS, "it is told of the bus that"),
        ("host:h1", E.HOST_STALL, {"what": "hung_task"}, GPU, C.GPU_OFF_BUS, "a task hangs that waits for"),
        (LEAF, E.PAUSE_STORM, {"state": "stormed"}, "nic:h2/mlx5_3/1", C.PFC_STORM, "it only relays pauses"),
        (LEAF, E.PAUSE_STORM, {"state": "stormed"}, "nic:h2/mlx5_3/1", C.PCIE, "does not take what it is sent"),
        (PORT, E.LINK_DOWN, {}, LEAF, C.SWITCH_FAULT, "shows it itself"),
    ],
)
def test_what_follows_from_a_culprit_names_it(
    component: str, name: EventName, attrs: dict[str, Any], root: str, fault: FaultClass, because: str
) -> None:
    log = Log()
    log.line(component, name, **attrs)
    found = log.account(root, fault, host=root.partition(":")[2].partition("/")[0] if kind_of(root) != "switch" else None)
    assert because in whys(found)[component] and root in whys(found)[component]
    assert found.unexplained == ()


@pytest.mark.parametrize(
    ("component", "name", "attrs"),
    [
        ("gpu:h2/5", E.XID, {"xid": "74"}),  # another host's NVLink
        ("gpu:h1/5", E.XID, {"xid": "31"}),
        ("host:h2", E.AER, {"severity": "fatal"}),
        ("host:h1", E.HOST_STALL, {"what": "soft_lockup"}),
        (LEAF, E.PAUSE_STORM, {"state": "stormed"}),
        (POD.nics_of_gpu("gpu:h2/1")[0], E.LINK_DOWN, {}),
    ],
)
def test_what_does_not_follow_is_said_to_be_unexplained(component: str, name: EventName, attrs: dict[str, Any]) -> None:
    log = Log()
    log.line(component, name, **attrs)
    found = log.account(GPU, C.GPU_OFF_BUS)
    assert found.explained == ()
    (left,) = found.unexplained
    assert component in left and "line 0" in left


def test_lines_of_another_job_or_of_long_ago_or_that_report_no_error_are_no_alerts() -> None:
    log = Log()
    log.line("gpu:h3/1", E.XID, xid="79")
    log.line("rank:other/1", E.PROCESS_EXITED)
    log.line(host_id("h3"), E.MACHINE_CHECK)
    log.line("gpu:h0/1", E.XID, at_s=STALL_S - 100, xid="31")
    log.line("gpu:h0/1", E.THROTTLED, severity=Severity.WARNING)
    assert alerts(log.case()) == []


def test_what_an_alternative_rests_on_or_has_been_explained_otherwise_is_accounted_for() -> None:
    log = Log()
    first, _ = log.line("gpu:h2/1", E.XID, xid="31"), log.line("gpu:h2/4", E.XID, xid="31")
    seen = Evidence(event_id=first, component=None, excerpt="", observed_at=START, why="")
    rival = Finding(fault_class=C.GPU_MEMORY, component="gpu:h2/1", score=0.4, evidence=(seen,), engine="e")
    other = Explained(component="gpu:h2/4", symptom="s", because="b")
    assert log.account(GPU, C.GPU_OFF_BUS, aside=[rival], already=[other]) == Accounted()
    assert len(log.account(GPU, C.GPU_OFF_BUS).unexplained) == 1


def test_of_alike_lines_some_are_shown_and_all_are_counted() -> None:
    log = Log()
    for rank in range(24):
        log.line(f"rank:j/{rank}", E.NCCL_WATCHDOG)
        log.line(f"rank:j/{rank}", E.NCCL_WATCHDOG)  # a second line of the same rank
        log.line(f"gpu:h{rank // 8}/{rank % 8}", E.XID, xid="31")
    found = log.account("rank:j/10", C.PROCESS_STALL)
    waited = [each for each in found.explained if each.because == "it waited in a collective that rank:j/10 held up"]
    assert len({each.component for each in waited}) == ALIKE_SHOWN + 1
    assert waited[-1] == Explained(component=None, symptom="nccl_watchdog: 20 more like it", because=waited[0].because)
    assert [each.component for each in found.explained if each not in waited] == ["rank:j/10"]
    assert len(found.unexplained) == 1 and found.unexplained[0].endswith(", and 23 more like it")


@settings(max_examples=30, deadline=None)
@given(
    lines=st.lists(
        st.tuples(st.sampled_from(list(E)), st.integers(0, 23), st.sampled_from(["13", "45", "74", "79", "119"])),
        max_size=200,
    ),
    fault=st.sampled_from(list(C)),
)
def test_no_alert_is_lost_and_none_makes_the_verdict_long(
    lines: list[tuple[EventName, int, str]], fault: FaultClass
) -> None:
    log = Log()
    for name, rank, number in lines:
        log.line(f"gpu:h{rank // 8}/{rank % 8}", name, xid=number)
    found = log.account(GPU, fault)
    assert len(found.explained) <= KINDS_SHOWN * (ALIKE_SHOWN + 1) + 1
    assert len(found.unexplained) <= KINDS_SHOWN + 1
    assert bool(lines) == bool(found.explained or found.unexplained)


# ------------------------------------------------------------------------------------------------------- in whole verdicts


def unaccounted(verdict: Verdict, log: list[Observed]) -> list[str]:
    """The alerts of a log that a verdict neither cites nor explains, nor counts."""
    cited = {each.event_id for each in verdict.evidence}
    explained = {each.component for each in verdict.explained}
    counted = {each.symptom.partition(":")[0] for each in verdict.explained if each.component is None}
    counted |= {each.partition(" of ")[0] for each in verdict.unexplained}
    return [
        each.id
        for each in log
        if isinstance(each.fact, Event) and each.fact.severity in ALARMING and each.received_at <= verdict.published_at
        if each.id not in cited and each.fact.component not in explained and kind_in_words(each.fact) not in counted
    ]


def watchdogs_and_teardown(log: Any, at_s: float, but: int = -1) -> None:
    """What every stall ends in: each rank's watchdog, then Xid 45 behind each process that is killed."""
    for rank in range(8):
        if rank != but:
            host = f"h{rank // 2}"
            log.event(f"rank:j/{rank}", E.NCCL_WATCHDOG, at_s + rank * 0.1, host=host, source="job_log", rank=str(rank))
            log.xid(host, f"0000:{rank % 2}1:00", 45, at_s + 1 + rank * 0.1, impact="victim")


@pytest.mark.parametrize("fault", ["link", "gpu", "dead", "stray"])
def test_every_alert_of_a_stall_is_cited_or_explained_or_counted(script: Callable[..., Any], fault: str) -> None:
    log = script()
    log.register()
    log.beats(70)
    step = log.run(1, 30)
    silent: tuple[int, ...] = ()
    if fault == "link":
        for source in ("netlink", "kernel_log"):
            log.event("nic:h1/rail0/1", E.LINK_DOWN, 30.0, host="h1", source=source, by=source)
        log.event("nic:h2/rail0/1", E.NCCL_NET_ERROR, 40.0, host="h2", source="job_log", status="12")
    elif fault == "gpu":
        log.xid("h1", "0000:01:00", 79, 30.0)
        log.xid("h1", "0000:11:00", 45, 30.2, impact="victim", cause="79")
    elif fault == "dead":
        silent = (5,)
        log.event("rank:j/5", E.PROCESS_EXITED, 30.0, host="h2", source="process", pid="1005", clean="false")
        log.event("rank:j/1", E.NCCL_NET_ERROR, 31.0, host="h0", source="job_log", kind="connection_closed", peer="h2")
    else:
        log.xid("h1", "0000:01:00", 79, 30.0)
        log.event(host_id("h3"), E.MACHINE_CHECK, 30.0, host="h3")  # nothing here explains it
    log.stand(30, 70, step=step, silent=silent)
    watchdogs_and_teardown(log, 55.0, but=5 if fault == "dead" else -1)
    found = log.verdicts(70)
    assert found and found[-1].culprits
    for verdict in found:
        assert unaccounted(verdict, log.log) == []
    assert bool(found[-1].unexplained) is (fault == "stray"), found[-1].unexplained
    assert {E.NCCL_WATCHDOG.value, "xid 45"} <= {
        each.symptom.partition(":")[0] for each in found[-1].explained if each.component is None
    }


def test_a_new_sort_of_consequence_is_news_and_more_of_the_same_is_none(script: Callable[..., Any]) -> None:
    log = script()
    log.register()
    log.beats(80)
    step = log.run(1, 30)
    log.xid("h1", "0000:01:00", 79, 30.0)
    log.stand(30, 80, step=step)
    before = len(log.verdicts(80))
    log.event("rank:j/0", E.NCCL_WATCHDOG, 50.0, host="h0", source="job_log")
    told = log.verdicts(80)
    assert len(told) == before + 1
    assert any("held up" in each.because for each in told[-1].explained)
    for rank in range(1, 8):
        log.event(f"rank:j/{rank}", E.NCCL_WATCHDOG, 55.0 + rank, host=f"h{rank // 2}", source="job_log")
    assert len(log.verdicts(80)) == before + 1
