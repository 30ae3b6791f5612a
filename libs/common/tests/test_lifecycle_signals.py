"""Signals and exit codes of real service processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STOP_WITHIN_S = 10  # the promise to whoever sends SIGTERM

PRELUDE = """
import asyncio, os, signal, sys, threading, time
from goodput_common.runtime.health import Health
from goodput_common.runtime.lifecycle import Part, StartError, run_service
from goodput_common.runtime.logs import configure_logging
from goodput_common.runtime.process import run_main
from goodput_common.runtime.tasks import Tasks

configure_logging("test", json=True)
tasks = Tasks()

async def serve(*parts, stop_within_s=9.0):
    return await run_service("test", parts, health=Health(), tasks=tasks, stop_within_s=stop_within_s)
"""


class Service:
    """A service in its own process, with its log lines."""

    def __init__(self, script: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()

    def wait_for(self, event: str) -> dict[str, Any]:
        with self._news:
            assert self._news.wait_for(lambda: self.find(event) is not None, timeout=60), "".join(self.lines)
        found = self.find(event)
        assert found is not None
        return found

    def find(self, event: str) -> dict[str, Any] | None:
        for line in self.lines:
            if line.startswith("{") and (entry := json.loads(line))["event"] == event:
                return dict(entry)
        return None

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        os.kill(self.process.pid, number)

    def exit_code(self, within_s: float = STOP_WITHIN_S) -> int:
        """Raises if the process is not gone in the promised time after its signal."""
        code = self.process.wait(timeout=within_s)
        self._reader.join(timeout=5)
        return code

    @property
    def text(self) -> str:
        return "".join(self.lines)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Any]:
    running: list[Service] = []

    def start(body: str) -> Service:
        script = tmp_path / f"service_{len(running)}.py"
        script.write_text(PRELUDE + textwrap.dedent(body))
        running.append(Service(script))
        return running[-1]

    yield start
    for each in running:
        if each.process.poll() is None:
            each.process.kill()
        each.process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_service_cleanly(service: Any, number: signal.Signals) -> None:
    running = service("run_main(lambda: serve(Part()))")
    running.wait_for("ready")
    running.signal(number)
    assert running.exit_code() == 0
    assert running.find("stopped")["exit_code"] == 0


def test_a_part_that_hangs_in_drain_does_not_hold_up_the_exit_and_is_named(service: Any) -> None:
    running = service("""
        class Stuck(Part):
            name = "consumer of JOB"
            async def drain(self):
                await asyncio.Event().wait()
        class Closes(Part):
            async def close(self):
                print("closed", flush=True)
        run_main(lambda: serve(Closes(), Stuck()))
    """)
    running.wait_for("ready")
    running.signal()
    assert running.exit_code() == 4
    hung = running.find("part hung while stopping")
    assert (hung["part"], hung["phase"]) == ("consumer of JOB", "drain")
    assert running.process.stdout.read() == "closed\n"


def test_a_part_that_blocks_the_event_loop_is_ended_by_the_watchdog_with_its_stack(service: Any) -> None:
    running = service("""
        class Blocks(Part):
            async def drain(self):
                while True:
                    time.sleep(0.05)
        run_main(lambda: serve(Blocks(), stop_within_s=1.0))
    """)
    running.wait_for("ready")
    running.signal()
    assert running.exit_code() == 128 + signal.SIGTERM
    assert "not stopped within 1 s" in running.text
    assert "in drain" in running.text


def test_a_thread_that_never_ends_does_not_keep_the_process(service: Any) -> None:
    running = service("""
        class Threaded(Part):
            async def start(self):
                asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
        run_main(lambda: serve(Threaded()))
    """)
    running.wait_for("ready")
    running.signal()
    assert running.exit_code() == 0


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(service: Any, second: signal.Signals) -> None:
    running = service("""
        class Slow(Part):
            async def drain(self):
                await asyncio.sleep(3600)
        run_main(lambda: serve(Slow(), stop_within_s=3000))
    """)
    running.wait_for("ready")
    running.signal()
    running.wait_for("stopping")
    running.signal(second)
    assert running.exit_code() == 128 + second
    assert "exiting at once" in running.text


def test_a_crashed_task_ends_the_process_with_its_traceback(service: Any) -> None:
    running = service("""
        async def tick():
            await asyncio.sleep(0.05)
            raise ZeroDivisionError("the ticker broke")
        class Ticks(Part):
            async def start(self):
                tasks.spawn("ticker", tick())
        run_main(lambda: serve(Ticks()))
    """)
    assert running.exit_code(within_s=60) == 1
    crash = running.find("task crashed")
    assert crash["task"] == "ticker"
    assert "Traceback" in crash["exception"]
    assert "ZeroDivisionError: the ticker broke" in crash["exception"]


def test_a_failed_start_says_what_to_do_next_and_exits_non_zero(service: Any) -> None:
    running = service("""
        class Closes(Part):
            async def close(self):
                print("closed", flush=True)
        class Refuses(Part):
            name = "http server"
            async def start(self):
                raise StartError("port 8081 is taken", do_next="set GOODPUT_HTTP_PORT")
        run_main(lambda: serve(Closes(), Refuses()))
    """)
    assert running.exit_code(within_s=60) == 3
    failed = running.find("start failed")
    assert (failed["part"], failed["next"]) == ("http server", "set GOODPUT_HTTP_PORT")
    assert running.process.stdout.read() == "closed\n"


def test_a_signal_during_a_start_that_waits_stops_it(service: Any) -> None:
    running = service("""
        class Waits(Part):
            async def start(self):
                os.write(2, b'{"event": "waiting"}\\n')
                await asyncio.sleep(3600)
        run_main(lambda: serve(Waits()))
    """)
    running.wait_for("waiting")
    running.signal()
    assert running.exit_code() == 0


def test_a_signal_before_the_service_runs_ends_the_process(service: Any) -> None:
    running = service("""
        async def early():
            os.write(2, b'{"event": "constructing"}\\n')
            await asyncio.sleep(3600)
        run_main(early)
    """)
    running.wait_for("constructing")
    running.signal()
    assert running.exit_code() == 128 + signal.SIGTERM


def test_a_misconfiguration_exits_with_2_and_no_traceback(service: Any) -> None:
    running = service("""
        from goodput_common.runtime.settings import CommonSettings
        async def configured():
            CommonSettings(http_port="eighty")
        run_main(configured)
    """)
    assert running.exit_code(within_s=60) == 2
    assert "GOODPUT_HTTP_PORT" in running.find("did not start")["error"]
    assert "Traceback" not in running.text
    assert "eighty" not in running.text


def test_an_unforeseen_error_at_the_door_exits_with_1_and_a_traceback(service: Any) -> None:
    running = service("""
        async def broken():
            raise KeyError("x")
        run_main(broken)
    """)
    assert running.exit_code(within_s=60) == 1
    assert "Traceback" in running.find("did not start")["exception"]


def test_a_service_that_cannot_be_put_together_exits_as_one_that_cannot_start(service: Any) -> None:
    running = service("""
        async def refused():
            raise StartError("another collector uses the spool", do_next="stop it")
        run_main(refused)
    """)
    assert running.exit_code(within_s=60) == 3
    assert running.find("did not start")["next"] == "stop it"
