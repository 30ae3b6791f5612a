"""What is remembered of the ranks between two looks."""

from __future__ import annotations

from typing import cast

from goodput_common.bus.ports import Message
from goodput_common.contracts.job import RankProgress
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
