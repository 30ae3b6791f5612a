"""Asynchronous events of RDMA devices: a verbs library compiled by the test, loaded by the real binding.

The double is a shared library with the symbols and structures of libibverbs (checked against the real header where it is
installed). Its devices' events come through pipes, as the kernel's come through the descriptor in `struct ibv_context`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "collector" / "tests"))

from collector_fixtures import Rig, Ticking

from goodput_collector.adapters.verbs import VerbsReader
from goodput_collector.adapters.verbs_library import VerbsLibrary
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.application.schedule import Schedule
from goodput_common.contracts.telemetry import Event, EventName, Severity, Source, SourceStatus
from goodput_common.runtime.clock import SystemClock
from goodput_common.runtime.tasks import Tasks

_C = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct device { char name[64]; };
struct context { struct device *device; void *operations[32]; int cmd_fd; int async_fd; };
struct event { union { void *pointer; int port; } element; int kind; };
struct record { int kind; int port; };

#define DEVICES 2
static struct device devices[DEVICES] = {{"mlx5_0"}, {"mlx5_1"}};
int acknowledged, open_now;

struct device **ibv_get_device_list(int *count) {
    struct device **list = calloc(DEVICES + 1, sizeof *list);
    for (int i = 0; i < DEVICES; i++) list[i] = &devices[i];
    *count = DEVICES;
    return list;
}
void ibv_free_device_list(struct device **list) { free(list); }
const char *ibv_get_device_name(struct device *device) { return device->name; }

struct context *ibv_open_device(struct device *device) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE_VERBS"), device->name);
    int fd = open(path, O_RDWR | O_CLOEXEC); /* a pipe; read-write, so that it never ends */
    if (fd < 0) return NULL;
    struct context *context = calloc(1, sizeof *context);
    context->device = device;
    context->cmd_fd = -1;
    context->async_fd = fd;
    open_now++;
    return context;
}
int ibv_close_device(struct context *context) {
    close(context->async_fd);
    free(context);
    open_now--;
    return 0;
}
int ibv_get_async_event(struct context *context, struct event *event) {
    struct record record;
    ssize_t got = read(context->async_fd, &record, sizeof record);
    if (got != sizeof record) return -1;
    if (record.kind < 0) { errno = EIO; return -1; }
    memset(event, 0, sizeof *event);
    event->element.port = record.port;
    event->kind = record.kind;
    return 0;
}
void ibv_ack_async_event(struct event *event) { (void)event; acknowledged++; }
"""
_CHECK = r"""
#include <infiniband/verbs.h>
#include <stddef.h>
_Static_assert(offsetof(struct ibv_context, async_fd) == 268, "descriptor of events");
_Static_assert(offsetof(struct ibv_async_event, event_type) == 8, "kind of event");
_Static_assert(IBV_EVENT_DEVICE_FATAL == 8 && IBV_EVENT_PORT_ERR == 10 && IBV_EVENT_GID_CHANGE == 18, "numbers of events");
"""


class Fabric:
    """The devices' pipes, and the tree that says that there are devices."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        self.library = library
        self.sys = folder / "sys"
        verbs = self.sys / "class" / "infiniband_verbs"
        verbs.mkdir(parents=True)
        for index in range(2):
            (verbs / f"uverbs{index}").mkdir()
            os.mkfifo(folder / f"mlx5_{index}")

    def happens(self, device: str, kind: int, port: int = 1) -> None:
        fd = os.open(self.folder / device, os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, kind.to_bytes(4, "little", signed=True) + port.to_bytes(4, "little"))
        os.close(fd)

    def reader(self, **more: object) -> VerbsReader:
        return VerbsReader(
            host="h0",
            clock=SystemClock(),
            sys_root=self.sys,
            library_of=lambda: VerbsLibrary(str(self.library)),
            **more,  # type: ignore[arg-type]
        )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("verbs")
    (folder / "verbs.c").write_text(_C)
    made = folder / "libibverbs.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(made), str(folder / "verbs.c")], check=True)
    return made


@pytest.fixture
def fabric(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fabric]:
    monkeypatch.setenv("FAKE_VERBS", str(tmp_path))
    yield Fabric(tmp_path, library)


def told(reading: Reading) -> list[tuple[str, str, Severity]]:
    return [(each.component, str(each.name), each.severity) for each in reading.samples if isinstance(each, Event)]


def test_the_structures_are_those_of_the_real_header(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not Path("/usr/include/infiniband/verbs.h").exists():
        pytest.skip("needs a C compiler and the header of libibverbs")
    (tmp_path / "check.c").write_text(_CHECK)
    subprocess.run([compiler, "-c", "-o", str(tmp_path / "check.o"), str(tmp_path / "check.c")], check=True)


def test_events_are_told_of_the_port_that_had_them(fabric: Fabric) -> None:
    verbs = fabric.reader()
    verbs.open()
    reading = verbs.read()
    assert (told(reading), reading.covered) == ([], ["nic:h0/mlx5_0/1", "nic:h0/mlx5_1/1"])
    for kind in (10, 9, 18, 4):  # error, active, GID change, a queue pair's: not told
        fabric.happens("mlx5_1", kind, 1)
    assert told(verbs.read()) == [
        ("nic:h0/mlx5_1/1", EventName.LINK_DOWN, Severity.ERROR),
        ("nic:h0/mlx5_1/1", EventName.LINK_UP, Severity.INFO),
        ("nic:h0/mlx5_1/1", EventName.ADDRESS_CHANGED, Severity.INFO),
    ]
    verbs.close()


def test_a_dead_adapter_is_told_and_let_go_while_the_other_is_heard(fabric: Fabric) -> None:
    verbs = fabric.reader()
    verbs.open()
    verbs.read()
    fabric.happens("mlx5_0", 8, 0)
    reading = verbs.read()
    assert told(reading) == [("nic:h0/mlx5_0/1", EventName.NIC_HANG, Severity.FATAL)]
    assert (reading.trouble, reading.covered) == ("mlx5_0 has gone", ["nic:h0/mlx5_1/1"])
    fabric.happens("mlx5_1", 10)
    reading = verbs.read()
    assert told(reading) == [("nic:h0/mlx5_1/1", EventName.LINK_DOWN, Severity.ERROR)]
    assert reading.trouble == "mlx5_0 has gone"  # until it is opened anew
    fabric.happens("mlx5_1", -1)
    with pytest.raises(Unreadable, match="no RDMA device is left"):
        verbs.read()
    verbs.close()


def test_a_device_that_may_not_be_opened_is_said_with_what_would_help(fabric: Fabric) -> None:
    (fabric.folder / "mlx5_0").unlink()
    verbs = fabric.reader()
    verbs.open()
    assert verbs.read().trouble == "cannot open mlx5_0"
    verbs.close()
    (fabric.folder / "mlx5_1").unlink()
    with pytest.raises(Unreadable) as error:
        verbs.open()
    assert "/dev/infiniband" in error.value.remedy


def test_a_driver_that_was_loaded_anew_is_opened_anew_under_the_same_name(fabric: Fabric) -> None:
    verbs = fabric.reader()
    verbs.open()
    fabric.happens("mlx5_0", 8, 0)
    assert verbs.read().trouble == "mlx5_0 has gone"
    devices = fabric.sys / "class" / "infiniband_verbs"
    (devices / "new").mkdir()
    (devices / "uverbs0").rmdir()
    (devices / "new").rename(devices / "uverbs0")
    with pytest.raises(Unreadable, match="come or gone"):
        verbs.read()
    verbs.close()
    verbs.open()
    reading = verbs.read()
    assert (reading.trouble, reading.covered) == ("", ["nic:h0/mlx5_0/1", "nic:h0/mlx5_1/1"])
    verbs.close()


def test_devices_that_come_are_opened_and_a_host_without_any_has_none(fabric: Fabric) -> None:
    verbs = fabric.reader(ignore=["mlx5_1"])
    verbs.open()
    assert verbs.read().covered == ["nic:h0/mlx5_0/1"]
    (fabric.sys / "class" / "infiniband_verbs" / "uverbs2").mkdir()
    with pytest.raises(Unreadable, match="come or gone"):
        verbs.read()
    verbs.close()
    shutil.rmtree(fabric.sys / "class")
    with pytest.raises(Absent):
        verbs.open()


def test_a_host_without_the_library_says_what_to_install(fabric: Fabric) -> None:
    verbs = VerbsReader(
        host="h0", clock=SystemClock(), sys_root=fabric.sys, library_of=lambda: VerbsLibrary("libnothing-like-it.so.9")
    )
    with pytest.raises(Unreadable, match="verbs library"):
        verbs.open()


async def test_an_event_wakes_the_source_at_once(fabric: Fabric) -> None:
    readings: list[Reading] = []
    tasks = Tasks()
    verbs = fabric.reader()
    verbs.interval_s = 3600.0

    def publish(_source: Source, reading: Reading) -> bool:
        readings.append(reading)
        return True

    schedule = Schedule([verbs], publish)
    await schedule.start()
    async with asyncio.timeout(20):
        while schedule.conditions()[0].status is not SourceStatus.OK:  # noqa: ASYNC110 - a test may poll
            await asyncio.sleep(0.01)
        fabric.happens("mlx5_0", 10)
        while not readings:  # noqa: ASYNC110 - a test may poll
            await asyncio.sleep(0.01)
    assert schedule.conditions()[0].source is Source.RDMA_EVENTS
    assert told(readings[0]) == [("nic:h0/mlx5_0/1", EventName.LINK_DOWN, Severity.ERROR)]
    await schedule.close()
    await tasks.close()


async def test_garbage_for_events_and_a_library_that_hangs_disturb_no_other_source(fabric: Fabric, tmp_path: Path) -> None:
    hang, release, neighbour = threading.Event(), threading.Event(), Ticking()

    def library() -> VerbsLibrary:
        if hang.is_set():
            release.wait(30)
        return VerbsLibrary(str(fabric.library))

    verbs = VerbsReader(host="h0", clock=SystemClock(), sys_root=fabric.sys, library_of=library)
    async with Rig(tmp_path / "rig", verbs, neighbour) as rig:
        condition = rig.condition(Source.RDMA_EVENTS)

        async def others_go_on() -> None:
            reads = neighbour.reads
            await rig.until(lambda: neighbour.reads > reads + 20, "the neighbour's readings")

        def downs() -> list[object]:
            return [each for each in rig.samples(Source.RDMA_EVENTS) if isinstance(each, Event)]

        await rig.until(lambda: condition.status is SourceStatus.OK, "the first reading")
        for kind, port in ((999, 1), (2**31 - 1, 2**32 - 7), (0, 2**31 - 1)):
            fabric.happens("mlx5_0", kind, port)
        fabric.happens("mlx5_0", 10)
        await rig.until(downs, "the event behind the garbage")
        await others_go_on()
        assert [each.name for each in downs() if isinstance(each, Event)] == [EventName.LINK_DOWN]
        verbs.deadline_s = 0.2
        hang.set()
        (fabric.sys / "class" / "infiniband_verbs" / "uverbs2").mkdir()  # all are opened anew
        await rig.until(lambda: "no answer" in condition.reason, "the hang")
        await others_go_on()
        verbs.deadline_s = 10.0
        hang.clear()
        release.set()
        await rig.until(lambda: condition.status is SourceStatus.OK, "its return")
        fabric.happens("mlx5_1", 10)
        await rig.until(lambda: len(downs()) == 2, "an event after it")
