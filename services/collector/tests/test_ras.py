"""NCCL's answers in all their forms, and what repeated answers prove."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from collector_fixtures import START, Rig, Ticking, TurnedClock, register
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.adapters.process import registered_ranks
from goodput_collector.adapters.ras import RasReader
from goodput_collector.adapters.ras_client import Answer, NotRas
from goodput_collector.application.ports import Absent, Unreadable
from goodput_collector.domain.ras import Communicator, Malformed, Missing, RasRank, RasReport, parse_json, parse_text
from goodput_collector.domain.ras_places import Places, states_of
from goodput_collector.domain.ras_progress import Pace, Progress, RasWatch, lag_of
from goodput_common.contracts.telemetry import Source, SourceStatus, State

HEAD = """NCCL version 2.30.7 compiled with CUDA 12.8
CUDA runtime version 12080, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.002s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2       3-4         8         7   RUNNING  MISMATCH
"""
HEALTHY = HEAD.replace("MISMATCH", "OK") + "\nErrors\n======\n\nWarnings\n========\n\n"
BEHIND = (
    HEAD
    + """
Errors
======

Warnings
========

#0-0 (78DB921D1C117B4A) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation {most}
  Rank 3 has launched up to operation 60 -- GPU 1 managed by process 77 on node 127.0.0.1

"""
)
MISSING = (
    HEAD
    + """
Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 77 on node 127.0.0.1 managing GPU 3

DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 99 on node 10.9.9.9 managing GPUs 0,1

#0-0 (1bdb83b038775869) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 3 -- GPU 3 managed by process 77 on node 127.0.0.1

#1-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 2 ranks
  The missing ranks: 21, 22

Warnings
========

TIMEOUT
  Encountered 2 communication timeouts while gathering communicator data

"""
)
OLD = HEAD.replace("2.30.7", "2.24.3") + (
    "\nErrors\n======\n\nWarnings\n========\n\n#0-0 (27a079b828ff1a75) MISMATCH\n"
    "  Communicator ranks have different collective operation counts\n"
    "  26 ranks have launched up to operation 6650\n  6 ranks have launched up to operation 6649\n"
    + "".join(f"  Rank {rank} -- GPU {rank} managed by process {500 + rank} on node 10.0.0.1\n" for rank in range(6))
)


def document(counts: list[int], *, missing: bool = False) -> dict[str, Any]:
    """JSON as NCCL 2.28.7 and newer give it."""
    ranks = [
        {
            "rank": rank,
            "host": "127.0.0.1",
            "pid": 70 + rank,
            "cuda_dev": rank,
            "nvml_dev": rank,
            "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "abort_flag": False},
            "collective_counts": {"AllReduce": count, "Broadcast": 3, "Recv": rank},
        }
        for rank, count in enumerate(counts)
    ]
    gone = {
        "rank": len(counts),
        "host": "127.0.0.1",
        "pid": 77,
        "cuda_dev": 7,
        "nvml_dev": 7,
        "status": {"unresponsive": True, "considered_dead": False},
    }
    return {
        "nccl_version": "2.29.2",
        "communicators_count": 1,
        "communicators": [
            {
                "hash": "0x78db921d1c117b4a",
                "size": len(counts) + missing,
                "ranks_count": len(counts),
                "missing_ranks_count": int(missing),
                "ranks": ranks,
                "missing_ranks": [gone] if missing else [],
            }
        ],
        "ras": {"collection_time_sec": 0.002, "timeouts_count": 0},
    }


# -- what an answer says ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [HEALTHY, BEHIND.format(most=64), MISSING, OLD])
def test_every_line_of_an_answer_is_understood(text: str) -> None:
    report = parse_text(text)
    assert (report.complete, report.lines - report.understood) == (True, 0)


def test_a_rank_that_lags_is_named_with_its_process() -> None:
    report = parse_text(BEHIND.format(most=64))
    (communicator,) = report.communicators
    assert (communicator.hash, communicator.size, report.version) == ("78db921d1c117b4a", 8, "2.30.7")
    lag = lag_of(communicator)
    assert lag is not None
    ((who, count),) = lag.behind
    assert (lag.operation, lag.most, count) == ("AllReduce", 64, 60)
    assert (who.rank, who.gpu, who.pid, who.node) == (3, 1, 77, "127.0.0.1")


def test_a_rank_that_is_ahead_is_not_taken_for_one_that_lags() -> None:
    report = parse_text(BEHIND.format(most=50))
    lag = lag_of(report.communicators[0])
    assert lag is not None
    assert (lag.most, lag.behind, lag.behind_ranks) == (60, (), 7)


def test_releases_that_count_all_operations_in_one_are_read() -> None:
    lag = lag_of(parse_text(OLD).communicators[0])
    assert lag is not None
    assert (lag.operation, lag.most, [who.rank for who, _ in lag.behind]) == ("any", 6650, [0, 1, 2, 3, 4, 5])


def test_processes_and_ranks_that_do_not_answer_are_named() -> None:
    report = parse_text(MISSING)
    assert [(each.pid, each.state, each.gpus) for each in report.processes] == [(77, "incomplete", "3"), (99, "dead", "0,1")]
    assert [[rank.rank for rank in each.missing] for each in report.communicators] == [[3], [21, 22]]
    assert report.timeouts == 2


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.9])
def test_half_an_answer_is_not_complete(cut: float) -> None:
    assert not parse_text(MISSING[: int(len(MISSING) * cut)]).complete


def test_json_names_every_rank_and_its_counts() -> None:
    report = parse_json(json.dumps(document([64, 64, 60], missing=True)))
    (communicator,) = report.communicators
    assert (communicator.size, communicator.errors) == (4, {"MISMATCH", "INCOMPLETE"})
    assert communicator.counts["AllReduce"] == {64: 2, 60: 1}
    assert [each.state for each in report.processes] == ["incomplete"]
    assert report.complete and report.names_all


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "RCCL version 2.28.7\nHIP runtime version 1\n\n" + text,
        lambda text: text.replace("},\n", "}\n"),
        lambda text: text.replace("}\n", "},\n").rstrip(",\n"),
        lambda text: text.replace('"pid": 70,\n', '"pid": 70\n'),
    ],
)
def test_json_with_the_faults_that_some_releases_make_is_mended(damage: Any) -> None:
    text = damage(json.dumps(document([64, 60]), indent=2))
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    assert parse_json(text).communicators[0].counts["AllReduce"] == {64: 1, 60: 1}


def test_json_that_cannot_be_mended_is_malformed() -> None:
    with pytest.raises(Malformed):
        parse_json(json.dumps(document([1]))[:-40])
    with pytest.raises(Malformed):
        parse_json("ERROR: Unknown command\n")


@given(st.text(max_size=200), st.lists(st.sampled_from((BEHIND + MISSING).splitlines()), max_size=30))
def test_no_answer_crashes_a_parser_and_lines_add_up(noise: str, lines: list[str]) -> None:
    text = "\n".join([*lines, noise, *lines])
    report = parse_text(text)
    assert report.understood <= report.lines == len(text.splitlines())
    RasWatch().see(report, 0.0)


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(
                st.sampled_from(
                    ["communicators", "ranks", "missing_ranks", "status", "collective_counts", "ras", "hash", "x"]
                ),
                inner,
                max_size=5,
            ),
        ),
        max_leaves=25,
    )
)
def test_json_of_any_other_shape_crashes_nothing(value: Any) -> None:
    try:
        report = parse_json(json.dumps({"communicators": value, "ras": value} if not isinstance(value, dict) else value))
    except Malformed:
        return
    RasWatch().see(report, 0.0)


# -- what repeated answers prove -------------------------------------------------------------------------------------


def answer(**counts: int) -> RasReport:
    communicator = Communicator("a")
    for name, count in counts.items():
        communicator.add("AllReduce" if name.startswith("r") else "Send", count, 1)
    return RasReport(communicators=[communicator], complete=True)


def progress(watch: RasWatch, report: RasReport, now_s: float) -> Progress:
    return watch.see(report, now_s)[0].progress


def test_only_counts_that_differ_and_stay_unchanged_mean_stuck() -> None:
    watch = RasWatch(queries=3, after_s=20)
    told = [progress(watch, answer(r0=5, r1=4), now_s) for now_s in (0, 10, 15, 25, 30)]
    assert told == [Progress.UNKNOWN, Progress.UNKNOWN, Progress.UNKNOWN, Progress.STUCK, Progress.STUCK]
    assert progress(watch, answer(r0=6, r1=4), 40) is Progress.MOVING
    assert progress(watch, answer(r0=6, r1=4), 70) is Progress.UNKNOWN


def test_a_communicator_whose_ranks_agree_is_still_and_not_stuck() -> None:
    watch = RasWatch(queries=2, after_s=1)
    assert [progress(watch, answer(r0=5, r1=5, s0=1, s1=9), now_s) for now_s in (0, 10)][-1] is Progress.STILL


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.floats(0.5, 30)), max_size=30))
def test_nothing_is_stuck_before_its_time_nor_by_half_an_answer(steps: list[tuple[int, bool, float]]) -> None:
    watch, now_s, count, since_s, asked = RasWatch(queries=3, after_s=20), 0.0, 0, None, 0
    for moved, complete, after_s in steps:
        now_s += after_s
        count += moved
        report = answer(r0=count + 1, r1=count)
        report.complete = complete
        told = progress(watch, report, now_s)
        if not complete:
            assert told is Progress.UNKNOWN
            if moved:
                since_s, asked = None, 0  # the next whole answer shows it
            continue
        if moved or since_s is None:
            since_s, asked = now_s, 0
        asked += 1
        if told is Progress.STUCK:
            assert asked >= 3 and now_s - since_s >= 20


def test_one_host_asks_for_the_whole_job_unless_it_stands_still() -> None:
    pace = Pace(every_s=30, stalled_s=8)
    assert [pace.wait_s(leads=True, stalled=stalled) for stalled in (False, True)] == [30, 8]
    assert [pace.wait_s(leads=False, stalled=stalled) for stalled in (False, True)] == [None, 30]


# -- the source ------------------------------------------------------------------------------------------------------


class Job:
    """A job of which ranks 0 and 3 run here, and the answers that its NCCL gives."""

    def __init__(self, tmp_path: Path, *, leads: bool = True) -> None:
        self.run_dir = tmp_path / "run"
        self.clock = TurnedClock()
        self.answers: list[Any] = []
        self.asked: list[bool] = []
        register(self.run_dir, 0 if leads else 1, 70)
        register(self.run_dir, 3, 77)
        self.reader = RasReader(
            "127.0.0.1:28028",
            host="h0",
            run_dir=self.run_dir,
            ranks=lambda: registered_ranks(self.run_dir),
            clock=self.clock,
            query=self._query,
        )

    def _query(self, host: str, port: int, *, json: bool, wait_s: float, deadline_s: float) -> Answer:
        self.asked.append(json)
        given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(given, Exception):
            raise given
        return given if isinstance(given, Answer) else Answer(given, given.startswith("{"), True)

    def states(self, *, after_s: float = 0.0) -> dict[tuple[str, str], State]:
        self.clock.seconds += after_s
        found = self.reader.read().samples
        return {(each.component, each.name): each for each in found if isinstance(each, State)}


def test_a_rank_that_keeps_its_job_waiting_is_told(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.answers = [BEHIND.format(most=64)]
    for _ in range(2):
        assert not any(name == "ras_operations" for _, name in job.states(after_s=30))
    states = job.states(after_s=30)
    assert states["job:j1", "ras_communicator:78db921d1c117b4a"].value == "stuck"
    behind = states["rank:j1/3", "ras_operations"]
    assert (behind.value, behind.attrs["launched"], behind.attrs["others_launched"]) == ("behind", "60", "64")


def test_processes_of_two_nodes_with_one_number_are_two(tmp_path: Path) -> None:
    register(tmp_path, 0, 4242)
    places = Places(registered_ranks(tmp_path), lambda node: node == "10.0.0.1")
    report = RasReport(
        communicators=[
            Communicator("a", size=2, missing=[RasRank(0, 4242, "10.0.0.1", 0), RasRank(9, 4242, "10.0.0.2", 0)])
        ],
        processes=[Missing(4242, "10.0.0.2", "0", "dead"), Missing(4242, "10.0.0.1", "0", "incomplete")],
    )
    told = {
        (each.component, each.name): (each.value, each.attrs["node"])
        for each in states_of(report, [], None, places, "h0", START)
        if each.name.startswith("ras_process")
    }
    assert told == {
        ("rank:j1/0", "ras_process"): ("incomplete", "10.0.0.1"),
        ("host:h0", "ras_process:10.0.0.2/4242"): ("dead", "10.0.0.2"),
    }


def test_a_process_that_does_not_answer_is_told_until_it_does(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.answers = [MISSING, HEALTHY]
    states = job.states()
    assert states["rank:j1/3", "ras_process"].value == "incomplete"
    assert states["job:j1", "ras_process:10.9.9.9/99"].value == "dead"
    assert states["job:j1", "ras_job"].value == "dead"
    assert job.states(after_s=30)["rank:j1/3", "ras_process"].value == "ok"


def test_a_job_is_asked_as_rarely_as_its_pace_says(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.answers = [HEALTHY]
    for _ in range(60):
        job.states(after_s=2)
    assert len(job.asked) == 4
    (job.run_dir / "dumps" / "j1").mkdir(parents=True)
    (job.run_dir / "dumps" / "j1" / "rank_0").touch()  # its agent thinks that steps have stopped
    for _ in range(60):
        job.states(after_s=2)
    assert len(job.asked) >= 4 + 14
    os.utime(job.run_dir / "dumps" / "j1" / "rank_0", (1, 1))
    before = len(job.asked)
    for _ in range(60):
        job.states(after_s=2)
    assert len(job.asked) - before <= 5


def test_other_hosts_of_a_job_and_hosts_without_one_ask_nobody(tmp_path: Path) -> None:
    job = Job(tmp_path, leads=False)
    job.answers = [HEALTHY]
    assert "first rank asks" in job.reader.read().trouble
    for path in (job.run_dir / "ranks").iterdir():
        path.unlink()
    assert "nobody is asked" in job.reader.read().trouble
    assert job.asked == []


def test_malformed_json_makes_it_read_text_from_then_on(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.answers = [Answer('{"nccl_version": "2.28.7", oops', True, True), BEHIND.format(most=64)]
    assert "malformed" in job.reader.read().trouble
    assert job.states(after_s=2)["job:j1", "ras_job"].attrs["nccl"] == "2.30.7"
    assert job.asked == [True, False]


def test_half_an_answer_is_trouble_and_tells_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.answers = [Answer(BEHIND.format(most=64)[:700], False, False)]
    reading = job.reader.read()
    assert "broke off" in reading.trouble
    assert reading.samples == []


def test_nobody_there_is_absent_and_somebody_else_is_unreadable(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.answers = [ConnectionRefusedError(), NotRas("127.0.0.1:28028 does not speak RAS"), TimeoutError("no answer in time")]
    with pytest.raises(Absent) as absent:
        job.reader.read()
    assert "NCCL_RAS_ENABLE" in absent.value.remedy
    for words in ("does not speak RAS", "no answer in time"):
        job.clock.seconds += 30
        with pytest.raises(Unreadable, match=words):
            job.reader.read()


async def test_a_stuck_job_is_published_and_a_socket_that_fails_stops_nobody_else(tmp_path: Path) -> None:
    job, neighbour = Job(tmp_path), Ticking()
    job.answers = [HEALTHY]
    async with Rig(tmp_path, job.reader, neighbour) as rig:
        await rig.until(lambda: rig.samples(Source.RAS), "the first answer")
        job.answers = [ConnectionRefusedError()]
        job.clock.seconds += 60
        condition = rig.condition(Source.RAS)
        await rig.until(lambda: condition.status is SourceStatus.ABSENT, "the refusal")
        job.answers = [Answer("\x00garbage", False, True)]
        job.clock.seconds += 60
        await rig.until(lambda: condition.status is SourceStatus.OK and condition.reason, "the garbage")
        before = neighbour.reads
        await rig.until(lambda: neighbour.reads > before + 20, "the neighbour's reads")
        job.answers = [MISSING]
        job.clock.seconds += 60
        await rig.until(
            lambda: "ras_process" in {each.name for each in rig.samples(Source.RAS) if isinstance(each, State)},
            "the missing process",
        )
