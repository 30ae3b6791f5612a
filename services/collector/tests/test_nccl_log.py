"""Job logs: watchdog lines old and new, async events and completion errors in all their forms, prefixes of every launcher."""

# ruff: noqa: E501 - log lines are quoted whole

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain.nccl_log import NEEDLES, JobLogParser, rank_of_log
from goodput_collector.domain.timestamps import LineClock
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Event, EventName, Severity

AT = datetime(2026, 3, 1, tzinfo=UTC)
WATCHDOG = (
    "[rank3]:[E221 04:41:44.283302831 ProcessGroupNCCL.cpp:685] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=50, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600011 milliseconds "
    "before timing out."
)


def feed(line: str, rank: int | None = None) -> Event | None:
    return JobLogParser(host="hx", clock=LineClock(reference=AT), job="j", rank=rank, reference=AT).feed(line)


def parse(line: str) -> Event:
    event = feed(line)
    assert event is not None
    assert NEEDLES.found_in(line.encode())
    return event


@pytest.mark.parametrize(
    ("line", "component", "expected"),
    [
        (
            "[rank3]:[E221 04:41:44.283302831 ProcessGroupNCCL.cpp:685] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=50, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600011 milliseconds before timing out.",
            "rank:j/3",
            {"kind": "timeout", "seq": "50", "op": "allreduce", "timeout_ms": "600000", "ran_ms": "600011"},
        ),
        (
            "[rank7]:[E221 04:41:44.28 ProcessGroupNCCL.cpp:685] [PG ID 2 PG GUID 5(TP) Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=50, OpType=_ALLGATHER_BASE, NumelIn=1, Timeout(ms)=600000) ran for 600011 milliseconds",
            "rank:j/7",
            {"group": "5", "group_desc": "TP", "group_rank": "1", "rank": "7"},
        ),
        (
            "[PG ID 0 PG GUID 0(default_pg) Rank 3] failure detected by watchdog at work sequence id: 50 PG status: last enqueued work: 51, last completed work: 49",
            "rank:j/3",
            {"kind": "failure", "seq": "50", "last_enqueued": "51", "last_completed": "49"},
        ),
        (
            "[1,12]<stdout>:[rank12]:[E221 04:41:44.28 ProcessGroupNCCL.cpp:1785] [PG 0 Rank 12] Timeout at NCCL work: 50, last enqueued NCCL work: 50, last completed NCCL work: 49.",
            "rank:j/12",
            {"group": "0", "last_enqueued": "50"},
        ),
        (
            "[PG ID 4 PG GUID 33(DP) Rank 2] failure detected by watchdog at work sequence id: 5 PG status: last enqueued work: 5, last completed work: 4",
            "host:hx",  # a rank within a group is nobody in particular
            {"group": "33", "group_rank": "2"},
        ),
        (
            "[rank2]:[F221 04:41:44.28 x.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",
            "rank:j/2",
            {"kind": "stuck", "for_s": "480"},
        ),
        (
            "[rank2]:[E221 04:41:44.28 x.cpp:1] [PG ID 0 PG GUID 0 Rank 2] Could not acquire GIL within 300 ms on exit, possible GIL induced hang",
            "rank:j/2",
            {"kind": "gil"},
        ),
    ],
)
def test_watchdog_lines(line: str, component: str, expected: dict[str, str]) -> None:
    event = parse(line)
    assert (event.name, event.component) == (EventName.NCCL_WATCHDOG, component)
    assert expected.items() <= event.attrs.items()


def test_a_rank_that_received_a_dump_signal_is_not_stalled_by_its_own_account() -> None:
    event = parse(
        "[rank4]:[E221 04:41:44.28 x.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 4] Received a dump signal due to a collective timeout from rank 5. Last enqueued NCCL work: 163, last completed NCCL work: 163."
    )
    assert (event.attrs["kind"], event.severity) == ("dump_signal", Severity.INFO)
    assert "last_enqueued" not in event.attrs


def test_the_glog_stamp_dates_the_line() -> None:
    event = parse(
        "[rank2]:[E221 04:41:44.28 x.cpp:1] [PG ID 0 PG GUID 0 Rank 2] Could not acquire GIL within 300 ms on exit"
    )
    assert event.observed_at == datetime(2026, 2, 21, 4, 41, 44, 280000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "component", "event_name", "severity"),
    [
        ("NET/IB : mlx5_0:1 Got async event : port error", "nic:h1/mlx5_0/1", "port_error", Severity.ERROR),
        ("NET/IB: mlx5_0:2 Got async error event: port error", "nic:h1/mlx5_0/2", "port_error", Severity.ERROR),
        ("NET/IB : mlx5_0:1 Got non-fatal async event: port error(10)", "nic:h1/mlx5_0/1", "port_error", Severity.ERROR),
        ("NET/IB : Got async event : port error", "host:h1", "port_error", Severity.ERROR),
        ("NET/IB : mlx5_0:1 Got async event : port active", "nic:h1/mlx5_0/1", "port_active", Severity.INFO),
        (
            "NET/IB : mlx5_0:1 Got async event : client reregistration",
            "nic:h1/mlx5_0/1",
            "client_reregistration",
            Severity.INFO,
        ),
        (
            "NET/IB : mlx5_0:1 Got async error event: local catastrophic error",
            "nic:h1/mlx5_0/1",
            "local_catastrophic_error",
            Severity.FATAL,
        ),
        ("NET/IB : mlx5_3:1 async fatal event on QP (0x12)", "nic:h1/mlx5_3/1", "qp_fatal", Severity.FATAL),
    ],
)
def test_async_events_name_the_adapter_where_they_can(
    said: str, component: str, event_name: str, severity: Severity
) -> None:
    event = parse(f"h1:4242:4250 [3] transport/net_ib.cc:94 NCCL WARN {said}")
    assert (event.name, event.component, event.severity) == (EventName.NCCL_ASYNC_EVENT, component, severity)
    assert (event.attrs["event"], event.attrs["pid"], event.attrs["gpu"]) == (event_name, "4242", "3")


@pytest.mark.parametrize(
    ("said", "component", "expected"),
    [
        (
            "NET/IB : Got completion from peer 10.0.0.2<43210> with error 12, opcode 0, len 0, vendor err 129",
            "host:h1",
            {"status": "12", "kind": "retry_exceeded", "peer": "10.0.0.2", "vendor_err": "129"},
        ),
        (
            "NET/IB: Got completion from peer 10.0.0.2<43210> with status=12 opcode=129 len=0 vendor err 129 (Recv) localGid ::ffff:10.0.0.1 remoteGids::ffff:10.0.0.2 hca mlx5_10",
            "nic:h1/mlx5_10/1",
            {"local_gid": "::ffff:10.0.0.1", "remote_gid": "::ffff:10.0.0.2", "device": "mlx5_10"},
        ),
        (
            "NET/IB: mlx5_2:1 Got completion from peer 10.0.0.2<1> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Send localGid ::ffff:10.0.0.1 remoteGid ::ffff:10.0.0.2 hca mlx5_2",
            "nic:h1/mlx5_2/1",
            {"status": "12", "status_name": "IBV_WC_RETRY_EXC_ERR", "vendor_err": "129", "opcode": "0"},
        ),
        ("NET/IB : Got completion with error 5, opcode 1, len 0, vendor err 249", "host:h1", {"kind": "flushed"}),
    ],
)
def test_completion_errors_in_all_three_forms(said: str, component: str, expected: dict[str, str]) -> None:
    event = parse(f"h1:4242:4250 [0] NCCL WARN {said}")
    assert (event.name, event.component) == (EventName.NCCL_NET_ERROR, component)
    assert expected.items() <= event.attrs.items()
    assert event.severity is (Severity.INFO if expected.get("kind") == "flushed" else Severity.ERROR)


def test_gloo_says_which_peer_closed_the_connection() -> None:
    event = parse(
        "[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:4321"
    )
    assert (event.component, event.attrs["peer"], event.attrs["backend"]) == ("rank:j/0", "10.0.0.3", "gloo")


@pytest.mark.parametrize(
    "line", ["2026-01-21 04:41:44,283 INFO step 5", "Root Cause (first observed failure):", "[rank0]: ok"]
)
def test_other_lines_tell_nothing(line: str) -> None:
    assert feed(line) is None


@pytest.mark.parametrize(
    ("name", "rank"), [("rank_3.log", 3), ("train-rank12.err", 12), ("node17.log", None), ("rank3", 3), ("x.rank.7.out", 7)]
)
def test_the_rank_of_a_log_is_in_its_name_only_where_it_says_rank(name: str, rank: int | None) -> None:
    assert rank_of_log(name) == rank


@given(st.text(max_size=300), st.sampled_from(["", "NET/IB : Got completion with error 12", "[rank3]:[E"]))
def test_any_line_is_survived_and_the_next_one_is_read(line: str, begins: str) -> None:
    log = JobLogParser(host="hx", clock=LineClock(reference=AT), job="j", rank=3, reference=AT)
    event = log.feed(begins + line)
    if event is not None:
        assert ids.parse(event.component)
        assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event
    after = log.feed(WATCHDOG)
    assert after is not None and (after.name, after.attrs["seq"]) == (EventName.NCCL_WATCHDOG, "50")
