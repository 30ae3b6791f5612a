"""Sources do not disturb each other."""

from __future__ import annotations

import os
import threading

import pytest
from schedule_fixtures import FastClock, Running, Script, descriptors, state, until

from goodput_collector.application.lane import HOLD_S, QUICK_READS
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.application.turn import DELIVERIES_MAX
from goodput_collector.application.worker import Hung, Worker
from goodput_common.contracts.telemetry import Source, SourceStatus


async def test_a_source_that_fails_is_unknown_with_its_reason_until_it_answers_again() -> None:
    script = Script(Source.RDMA, Unreadable("the adapter does not answer"), Reading(samples=[state()]))
    seen = []
    running = Running(script)
    async with running:
        await until(lambda: running.condition(Source.RDMA).reason == "the adapter does not answer" or bool(running.told), "")
        seen.append(running.condition(Source.RDMA).status)
        await until(lambda: bool(running.told), "the second reading")
        assert running.condition(Source.RDMA).status is SourceStatus.OK
    assert script.opened == 2
    assert script.closed >= 2


async def test_retries_grow_slower_up_to_a_minute() -> None:
    clock = FastClock()
    script = Script(Source.RDMA, *[Unreadable("no")] * 9)
    running = Running(script, clock=clock)
    async with running:
        await until(lambda: script.opened >= 9, "nine tries")
    assert [asked for asked in clock.asked if asked >= 1][:8] == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_what_a_host_does_not_have_is_absent_and_not_unknown() -> None:
    running = Running(Script(Source.RDMA, *[Absent("no RDMA devices")] * 500))
    async with running:
        await until(lambda: running.condition(Source.RDMA).status is SourceStatus.ABSENT, "absent")
        assert running.condition(Source.RDMA).reason == "no RDMA devices"


async def test_a_hung_source_is_unknown_and_the_others_go_on() -> None:
    release = threading.Event()
    hung = Script(Source.RDMA, release, Reading(samples=[state("back")]))
    hung.deadline_s = 0.05
    fine = Script(Source.NETLINK, *[Reading(samples=[state(str(number))]) for number in range(20)])
    running = Running(hung, fine)
    async with running:
        await until(lambda: "no answer within" in running.condition(Source.RDMA).reason, "the deadline")
        await until(lambda: len(running.told) == 20, "the other source's readings")
        assert running.condition(Source.RDMA).status is SourceStatus.UNKNOWN
        release.set()
        await until(lambda: len(running.told) == 21, "the hung source after it came back")
        assert running.condition(Source.RDMA).status is SourceStatus.OK


class Where(Script):
    """Notes in which thread it is read."""

    def __init__(self, source: Source, instance: str = "", *, slow_reads: int = 0) -> None:
        super().__init__(source)
        self.instance = instance
        self.slow_reads = slow_reads
        self.threads: list[int] = []

    def read(self) -> Reading:
        self.threads.append(threading.get_ident())
        if self.slow_reads:
            self.slow_reads -= 1
            threading.Event().wait(2 * HOLD_S)
        return Reading(samples=[state(f"{self.instance}{len(self.threads)}")])


async def test_sources_that_answer_quickly_share_a_thread() -> None:
    sources = [Where(Source.RDMA, "a"), Where(Source.RDMA, "b"), Where(Source.NETLINK)]
    async with Running(*sources):
        await until(lambda: all(len(each.threads) > 20 for each in sources), "twenty rounds")
    assert len({thread for each in sources for thread in each.threads}) == 1


async def test_a_source_that_was_slow_is_left_to_its_thread_and_shares_again_after_many_quick_reads() -> None:
    slow, fine = Where(Source.RDMA, slow_reads=2), Where(Source.NETLINK)
    async with Running(slow, fine):
        await until(lambda: len(slow.threads) > 3, "it is quick again")
        assert fine.threads[-1] != slow.threads[-1]
        await until(lambda: fine.threads[-1] == slow.threads[-1], "one thread again")
    assert len(slow.threads) >= QUICK_READS


async def test_what_others_have_read_in_the_round_in_which_one_hangs_is_told_once() -> None:
    release = threading.Event()
    before = Script(Source.NETLINK, *[Reading(samples=[state(f"before {n}")]) for n in range(9)])
    hung = Script(Source.RDMA, release)
    after = Script(Source.HOST, *[Reading(samples=[state(f"after {n}")]) for n in range(9)])
    running = Running(before, hung, after)
    async with running:
        await until(lambda: len(running.told) == 18, "both neighbours' readings")
        release.set()
    for name, source in (("before", Source.NETLINK), ("after", Source.HOST)):
        told = [reading.samples[0].value for each, reading in running.told if each is source]  # type: ignore[union-attr]
        assert told == [f"{name} {n}" for n in range(9)]


async def test_however_many_sources_hang_the_last_one_goes_on() -> None:
    release = threading.Event()
    hung = [Script(Source.RDMA, release) for _ in range(4)]
    fine = Script(Source.NETLINK, *[Reading(samples=[state(str(n))]) for n in range(9)])
    for each in hung:
        each.deadline_s = 0.01
    running = Running(*hung, fine)
    async with running:
        await until(lambda: len(running.told) == 9, "its readings")
        reasons = [each.reason for each in running.schedule.conditions()]
        assert [("no answer within" in reason) for reason in reasons] == [True] * 4 + [False]
        release.set()


async def test_a_hung_source_keeps_no_schedule_from_closing_and_leaves_no_descriptor_behind() -> None:
    before, release = descriptors(), threading.Event()
    hung, fine = Script(Source.RDMA, release), Script(Source.NETLINK, *[Reading(samples=[state(str(n))]) for n in range(9)])
    running = Running(hung, fine)
    async with running:
        await until(lambda: len(running.told) == 9, "the neighbour's readings")
    assert hung.closed == 0
    release.set()
    await until(lambda: hung.closed == 1, "the hung source is closed once it has come back")
    await until(lambda: descriptors() <= before, "all descriptors are given back")


class Device(Script):
    """Has a counter, and hangs once: what it counts meanwhile is in the reading that comes late, and in no other."""

    deadline_s = 0.05

    def __init__(self) -> None:
        super().__init__(Source.RDMA)
        self.release = threading.Event()
        self.link_downed = self.told = 0

    def read(self) -> Reading:
        self.release.wait(30)
        delta, self.told = self.link_downed - self.told, self.link_downed
        return Reading(samples=[state(f"+{delta}")] if delta else [], covered=["nic:h0/rail0/1"])


async def test_what_changed_while_a_source_hung_is_told_after_it() -> None:
    device = Device()
    running = Running(device)
    async with running:
        await until(lambda: "no answer within" in running.condition(Source.RDMA).reason, "the deadline")
        device.link_downed += 1
        device.release.set()
        await until(lambda: running.told != [], "the change")
        await until(lambda: running.condition(Source.RDMA).status is SourceStatus.OK, "it answers again")
        assert running.condition(Source.RDMA).covered == ("nic:h0/rail0/1",)
        assert (device.opened, device.closed) == (1, 0)
    assert [reading.samples for _, reading in running.told] == [[state("+1")]]


async def test_a_source_that_takes_long_to_open_goes_on_once_it_is_open() -> None:
    release = threading.Event()
    slow = Script(Source.RDMA, Reading(samples=[state()]))
    slow.deadline_s = 0.05
    slow.open = lambda: release.wait(30)  # type: ignore[method-assign, assignment]
    running = Running(slow)
    async with running:
        await until(lambda: "no answer within" in running.condition(Source.RDMA).reason, "the deadline")
        release.set()
        await until(lambda: len(running.told) == 1, "its reading")
        assert slow.closed == 0


async def test_a_reading_that_could_not_be_published_is_offered_again_before_the_next_read() -> None:
    running, refusals = Running(Script(Source.RDMA, *[Reading(samples=[state(str(n))]) for n in range(3)])), 2
    told = running.told

    def publish(source: Source, reading: Reading) -> bool:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise OSError(28, "no space left on device")
        told.append((source, reading))
        return True

    running.schedule._publish = publish
    async with running:
        await until(lambda: len(told) == 3, "all three")
        await until(lambda: running.condition(Source.RDMA).status is SourceStatus.OK, "it is fine again")
    assert [reading.samples for _, reading in told] == [[state(str(n))] for n in range(3)]


async def test_a_reading_that_can_never_be_published_is_given_up_with_its_reason() -> None:
    script = Script(Source.RDMA, Reading(samples=[state("poison")]), Reading(samples=[state("fine")]))
    running = Running(script)
    told, offered = running.told, 0

    def publish(source: Source, reading: Reading) -> bool:
        nonlocal offered
        if reading.samples[0] == state("poison"):
            offered += 1
            raise ValueError("not to be encoded")
        told.append((source, reading))
        return True

    running.schedule._publish = publish
    reasons: set[str] = set()

    def is_told() -> bool:
        reasons.add(running.condition(Source.RDMA).reason)
        return bool(told)

    async with running:
        await until(is_told, "the next reading")
    assert offered == DELIVERIES_MAX
    assert any("not to be encoded" in reason for reason in reasons)


async def test_a_source_whose_close_raises_is_opened_again() -> None:
    script = Script(Source.RDMA, Unreadable("no"), Reading(samples=[state()]))

    def close() -> None:
        raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")

    script.close = close  # type: ignore[method-assign]
    running = Running(script)
    async with running:
        await until(lambda: len(running.told) == 1, "its reading")


async def test_a_bookmark_that_cannot_move_makes_nothing_told_twice() -> None:
    def kept() -> None:
        raise ValueError("cannot be written")

    running = Running(Script(Source.RDMA, Reading(samples=[state("1")], kept=kept), Reading(samples=[state("2")])))
    async with running:
        await until(lambda: len(running.told) == 2, "both")
    assert [reading.samples for _, reading in running.told] == [[state("1")], [state("2")]]


async def test_no_bookmark_moves_while_what_was_told_waits_in_memory() -> None:
    moved: list[str] = []
    script = Script(
        Source.RDMA,
        Reading(samples=[state("1")], kept=lambda: moved.append("told")),
        Reading(kept=lambda: moved.append("nothing told")),
        Reading(samples=[state("2")]),
    )
    running = Running(script)
    running.safe = False
    async with running:
        await until(lambda: len(running.told) == 2, "all of it")
    assert moved == []


async def test_a_bug_in_one_source_takes_nobody_down() -> None:
    fine = Script(Source.NETLINK, Reading(samples=[state()]))
    running = Running(Script(Source.RDMA, *[ZeroDivisionError("bug")] * 500), fine)
    async with running:
        await until(lambda: "ZeroDivisionError" in running.condition(Source.RDMA).reason, "the bug's report")
        await until(lambda: len(running.told) == 1, "the other source's reading")
        assert running.tasks.crash is None


async def test_a_bug_that_stays_is_logged_once_and_again_after_it_had_gone(caplog: pytest.LogCaptureFixture) -> None:
    script = Script(
        Source.RDMA, *[ZeroDivisionError("bug")] * 9, Reading(samples=[state()]), *[ZeroDivisionError("bug")] * 9
    )
    async with Running(script):
        await until(lambda: script.opened >= 19, "all tries")
    told = [each for each in caplog.records if "source failed" in str(each.msg)]
    assert len(told) == 2


async def test_trouble_with_a_part_is_told_while_the_source_is_fine() -> None:
    running = Running(Script(Source.RDMA, *[Reading(trouble="cannot read mlx5_1/1")] * 5000))
    async with running:
        await until(lambda: running.condition(Source.RDMA).reason == "cannot read mlx5_1/1", "the trouble")
        assert running.condition(Source.RDMA).status is SourceStatus.OK


async def test_a_descriptor_that_becomes_readable_wakes_its_source_before_its_time() -> None:
    read_end, write_end = os.pipe()
    script = Script(Source.KERNEL_LOG, Reading(), Reading(samples=[state()]))
    script.interval_s, script.fd = 3600.0, read_end

    class Patient(FastClock):
        def shorten(self, seconds: float) -> float:
            return seconds

    running = Running(script, clock=Patient())
    try:
        async with running:
            await until(lambda: running.condition(Source.KERNEL_LOG).status is SourceStatus.OK, "the first reading")
            assert running.told == []
            os.write(write_end, b"x")
            await until(lambda: len(running.told) == 1, "the wake-up")
    finally:
        os.close(read_end)
        os.close(write_end)


async def test_a_worker_asks_no_more_of_a_thread_that_has_not_come_back() -> None:
    worker, release = Worker("test"), threading.Event()
    with pytest.raises(Hung):
        await worker.call(lambda: release.wait(30), deadline_s=0.02)
    with pytest.raises(Hung):
        await worker.call(lambda: "never run yet", deadline_s=0.02)
    release.set()
    assert await worker.call(lambda: "now", deadline_s=20) == "now"
    worker.stop()


# -- publishing ------------------------------------------------------------------------------------------------------
