"""What is remembered of the ranks between two looks."""

from __future__ import annotations

from typing import cast

from goodput_common.bus.ports import Message
from goodput_common.contracts.job import HostProgress, RankProgress
from goodput_recovery.application.ports import Store
from goodput_recovery.application.verify import Ranks
from goodput_recovery.testing import START


async def say(ranks: Ranks, job: str) -> None:
    report = RankProgress(fabric="f", job=job, rank=0, host="h", seq=1, at=START, step=1)
    await ranks.handle(Message(id="1", type="t", source="s", subject="s", time=START, data=report, received_at=START))


async def test_the_jobs_heard_since_the_last_call_are_told_once() -> None:
    ranks = Ranks(cast(Store, None))  # reports of progress are not stored
    for job in ("b", "a", "b"):
        await say(ranks, job)
    assert ranks.heard() == ["a", "b"]
    assert ranks.heard() == []
    await say(ranks, "a")
    ranks.forget_all()
    assert ranks.heard() == []


async def test_reports_that_come_together_count_for_each_of_their_ranks() -> None:
    ranks = Ranks(cast(Store, None))
    told = tuple(RankProgress(fabric="f", job="j", rank=n, host="h", seq=1, at=START, step=n) for n in (3, 4))
    data = HostProgress(fabric="f", job="j", host="h", at=START, reports=told)
    await ranks.handle(Message(id="1", type="t", source="s", subject="s", time=START, data=data, received_at=START))
    known = ranks.known("j")
    assert known is not None
    assert {number: state.step for number, state in known.ranks.items()} == {3: 3, 4: 4}
    assert ranks.heard() == ["j"]
