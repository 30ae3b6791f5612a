"""NCCL's status socket: a real connection to a server that speaks its protocol, well and badly."""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from goodput_collector.adapters.process import registered_ranks
from goodput_collector.adapters.ras import RasReader
from goodput_collector.adapters.ras_client import NotRas, ask, is_local
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.telemetry import State
from goodput_common.runtime.clock import SystemClock

TEXT = """NCCL version 2.27.3 compiled with CUDA 12.8

Communicators... (0.002s)
=============

Errors
======

INCOMPLETE
  Missing communicator data from 1 job process
  Process 4242 on node 127.0.0.1 managing GPU 3

Warnings
========

"""
JSON = """{
  "nccl_version": "2.28.9",
  "communicators": [{"hash": "0xaa", "size": 2, "ranks": [
    {"rank": 0, "host": "127.0.0.1", "pid": 1, "cuda_dev": 0, "collective_counts": {"AllReduce": 5}}],
    "missing_ranks": [{"rank": 1, "host": "127.0.0.1", "pid": 4242, "cuda_dev": 1,
                       "status": {"unresponsive": true, "considered_dead": true}}]}],
  "ras": {"collection_time_sec": 0.1, "timeouts_count": 1}
}
"""


class Ras:
    """`speaks_json`: NCCL 2.28.7 or newer. The rest is how it misbehaves."""

    def __init__(self) -> None:
        self.speaks_json = True
        self.answer = JSON
        self.greets = b"SERVER PROTOCOL 2\n"
        self.cut: int | None = None
        self.hangs = False
        self.slow_s = 0.0
        self.heard: list[str] = []
        self.release = threading.Event()
        ras = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                for raw in self.rfile:
                    line = raw.decode().strip().lower()
                    ras.heard.append(line)
                    if not ras.reply(line, self.wfile.write):
                        return

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = int(self.server.server_address[1])
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def reply(self, line: str, write: Callable[[bytes], object]) -> bool:
        if line.startswith("client protocol"):
            write(self.greets)
        elif line.startswith("timeout"):
            write(b"OK\n")
        elif line == "set format json":
            write(b"OK\n" if self.speaks_json else b"ERROR: Unknown command set format json\n")
        elif line == "verbose status":
            data = self.answer.encode()[: self.cut]
            for start in range(0, len(data), 100):
                write(data[start : start + 100])
                self.release.wait(self.slow_s)
            if self.hangs:
                self.release.wait(30)
            return False
        return True

    def close(self) -> None:
        self.release.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def ras() -> Iterator[Ras]:
    made = Ras()
    yield made
    made.close()


def reader(ras: Ras, run_dir: Path, *, deadline_s: float = 15.0) -> RasReader:
    (run_dir / "ranks").mkdir(parents=True, exist_ok=True)
    for rank, pid in ((0, 1), (1, 4242)):
        registered = RankRegistered(
            fabric="f", job="j1", rank=rank, world_size=2, host="h0", pid=pid, at=SystemClock().now(), backend="nccl"
        )
        (run_dir / "ranks" / f"j1.{rank}.json").write_bytes(msgspec.json.encode(registered))
    return RasReader(
        f"127.0.0.1:{ras.port}",
        host="h0",
        run_dir=run_dir,
        ranks=lambda: registered_ranks(run_dir),
        clock=SystemClock(),
        deadline_s=deadline_s,
    )


def states(reading: Reading) -> dict[tuple[str, str], str]:
    return {(each.component, each.name): each.value for each in reading.samples if isinstance(each, State)}


def test_the_handshake_and_a_query_in_json(ras: Ras, tmp_path: Path) -> None:
    told = states(reader(ras, tmp_path).read())
    assert ras.heard == ["client protocol 2", "timeout 5", "set format json", "verbose status"]
    assert told["rank:j1/1", "ras_process"] == "dead"


def test_an_nccl_without_json_is_read_as_text(ras: Ras, tmp_path: Path) -> None:
    ras.speaks_json, ras.answer = False, TEXT
    told = states(reader(ras, tmp_path).read())
    assert told["rank:j1/1", "ras_process"] == "incomplete"


def test_an_answer_that_comes_in_pieces_is_put_together(ras: Ras, tmp_path: Path) -> None:
    ras.slow_s = 0.01
    assert states(reader(ras, tmp_path).read())["job:j1", "ras_job"] == "dead"


def test_half_an_answer_concludes_nothing_and_does_not_wait_for_ever(ras: Ras, tmp_path: Path) -> None:
    ras.speaks_json, ras.answer, ras.cut, ras.hangs = False, TEXT, 200, True
    began = time.monotonic()
    reading = reader(ras, tmp_path, deadline_s=3.0).read()
    assert time.monotonic() - began < 10
    assert reading.samples == []
    assert "broke off" in reading.trouble


def test_somebody_else_on_the_port_is_unreadable(ras: Ras, tmp_path: Path) -> None:
    ras.greets = b"HTTP/1.1 400 Bad Request\n"
    with pytest.raises(Unreadable, match="does not speak RAS"):
        reader(ras, tmp_path).read()


def test_nobody_on_the_port_is_absent_until_somebody_is(ras: Ras, tmp_path: Path) -> None:
    asking = reader(ras, tmp_path)
    ras.server.shutdown()
    ras.server.server_close()
    with pytest.raises(Absent):
        asking.read()


def test_a_server_that_says_nothing_is_given_up_at_the_deadline(ras: Ras) -> None:
    ras.greets = b""
    with pytest.raises((TimeoutError, NotRas)):
        ask("127.0.0.1", ras.port, json=True, wait_s=1, deadline_s=0.5)


def test_addresses_of_this_host_are_told_from_others() -> None:
    assert is_local("127.0.0.1")
    assert not is_local("203.0.113.7")
    assert not is_local("no address")
