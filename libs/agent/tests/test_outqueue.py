"""The queue towards the bus: order and bound."""

from __future__ import annotations

from datetime import UTC, datetime

from goodput_agent.outqueue import Outgoing, OutQueue
from goodput_common.contracts.job import RankExited

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def message(number: int) -> Outgoing:
    return Outgoing("s", RankExited(fabric="f", job="j", rank=number, host="h", at=NOW), str(number), "", NOW)


def test_messages_leave_in_order() -> None:
    queue = OutQueue()
    for number in range(3):
        queue.put(message(number))
    left = []
    while (head := queue.head()) is not None:
        left.append(head.id)
        queue.done(head)
    assert left == ["0", "1", "2"]


def test_at_the_bound_the_oldest_is_dropped_and_counted() -> None:
    queue = OutQueue(capacity=2)
    for number in range(5):
        queue.put(message(number))
    assert queue.dropped == 3
    head = queue.head()
    assert head is not None
    assert head.id == "3"


def test_a_message_dropped_while_being_sent_takes_no_other_with_it() -> None:
    queue = OutQueue(capacity=2)
    queue.put(message(0))
    sending = queue.head()
    assert sending is not None
    queue.put(message(1))
    queue.put(message(2))
    queue.done(sending)
    assert len(queue) == 2
