"""Group commit: one transaction for all that waits, and what each failure means for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from goodput_common.runtime.clock import SystemClock
from goodput_correlator.application.group_commit import GroupCommit
from goodput_correlator.application.ports import Deposed, StoreRefused, StoreUnavailable


class Disk:
    """Commits slowly; `bad` items are refused; the first `away` tries fail."""

    def __init__(self, *, bad: Sequence[int] = (), away: int = 0, error: Exception | None = None) -> None:
        self.groups: list[list[int]] = []
        self.again: list[bool] = []
        self.bad, self.away, self.error = set(bad), away, error

    async def write(self, items: Sequence[int], again: bool) -> int:
        await asyncio.sleep(0.001)
        if self.error:
            raise self.error
        if self.away:
            self.away -= 1
            raise StoreUnavailable("not now")
        if self.bad & set(items):
            raise StoreRefused(f"bad: {sorted(self.bad & set(items))}")
        self.groups.append(list(items))
        self.again.append(again)
        return sum(items)


def commits_to(disk: Disk) -> GroupCommit[int, int]:
    return GroupCommit(disk.write, clock=SystemClock(), group_max=4)


async def test_what_arrives_during_a_commit_forms_the_next_group_up_to_the_bound() -> None:
    disk = Disk()
    commits = commits_to(disk)
    running = asyncio.create_task(commits.run())
    results = await asyncio.gather(*(commits.put(n) for n in range(6)))
    assert disk.groups == [[0, 1, 2, 3], [4, 5]]
    assert results == [6, 6, 6, 6, 9, 9]
    running.cancel()


async def test_a_refused_write_fails_alone_and_the_others_of_its_group_are_kept() -> None:
    disk = Disk(bad=[2])
    commits = commits_to(disk)
    running = asyncio.create_task(commits.run())
    results = await asyncio.gather(*(commits.put(n) for n in range(4)), return_exceptions=True)
    assert [isinstance(each, StoreRefused) for each in results] == [False, False, True, False]
    assert sorted(n for group in disk.groups for n in group) == [0, 1, 3]
    running.cancel()


async def test_a_store_that_is_away_is_waited_for_and_the_retry_says_that_it_is_one() -> None:
    disk = Disk(away=2)
    commits = commits_to(disk)
    running = asyncio.create_task(commits.run())
    assert await commits.put(7) == 7
    assert (disk.again, commits.available) == ([True], True)
    await commits.put(1)
    assert disk.again == [True, False]
    running.cancel()


@pytest.mark.parametrize("error", [Deposed("term 1 has ended"), RuntimeError("defect")])
async def test_any_other_error_ends_the_task_and_reaches_whoever_waits(error: Exception) -> None:
    commits = commits_to(Disk(error=error))
    running = asyncio.create_task(commits.run())
    results = await asyncio.gather(*(commits.put(n) for n in range(3)), return_exceptions=True)
    assert results == [error] * 3
    with pytest.raises(type(error)):
        await running
    with pytest.raises(StoreUnavailable):
        await commits.put(9)


async def test_at_the_end_of_the_term_waiting_writes_are_given_back() -> None:
    commits = commits_to(Disk(away=10**9))
    running = asyncio.create_task(commits.run())
    waiting = [asyncio.create_task(commits.put(n)) for n in range(6)]
    await asyncio.sleep(0.01)
    running.cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(each, StoreUnavailable) for each in results)
