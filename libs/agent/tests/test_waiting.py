"""How much of a step is waiting, by glances at the main thread's frames."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from goodput_agent.waiting import (
    ABSENT_GAPS,
    GLANCE_EVERY_S,
    TAKEN_TOGETHER,
    UNEVEN,
    Place,
    Waiting,
    gap_s,
    place_of,
    waits_on_host,
)

C10D = "torch.distributed.distributed_c10d"


def in_file(filename: str, name: str, inner: Callable[[], Any]) -> Any:
    """What `inner` returns, called by a function `name` of that file."""
    scope: dict[str, Any] = {}
    exec(compile(f"def {name}(inner):\n    return inner()\n", filename, "exec"), scope)
    return scope[name](inner)


def here() -> Place:
    return place_of(sys._getframe())


def test_a_thread_waits_inside_a_collective_and_nowhere_else() -> None:
    file = "/venv/torch/distributed/distributed_c10d.py"
    assert here() is Place.WORKING
    assert in_file(file, "all_reduce", here) is Place.WAITING
    assert in_file(file, "wrapper", here) is Place.WORKING


def test_where_waiting_has_no_frames_of_its_own_it_is_hidden() -> None:
    def step() -> Place:
        return Place(in_file("/venv/torch/distributed/distributed_c10d.py", "broadcast", here))

    assert in_file("/venv/torch/nn/parallel/distributed.py", "forward", step) is Place.HIDDEN
    assert in_file("/venv/torch/distributed/fsdp/_runtime.py", "pre_forward", here) is Place.HIDDEN


def test_a_thread_that_is_gone_works() -> None:
    assert place_of(sys._current_frames().get(0)) is Place.WORKING


def world(*backends: str) -> dict[str, Any]:
    groups = {f"group {n}": (backend, None) for n, backend in enumerate(backends)}
    return {C10D: SimpleNamespace(_world=SimpleNamespace(pg_map=groups))}


def test_only_collectives_that_keep_the_main_thread_can_be_seen() -> None:
    assert waits_on_host(world("gloo"), {})
    assert not waits_on_host(world("gloo", "nccl"), {})
    assert not waits_on_host(world("cpu:gloo,cuda:nccl"), {})
    assert waits_on_host(world("nccl"), {"TORCH_NCCL_BLOCKING_WAIT": "1"})
    assert not waits_on_host({}, {})
    assert not waits_on_host(world(), {})


def glances(waiting: Waiting, *places: Place, from_s: float = 0.0, gap_s: float = GLANCE_EVERY_S) -> float:
    for n, place in enumerate(places):
        waiting.glance(from_s + n * gap_s, place, in_step=True)
    return from_s + len(places) * gap_s


def test_the_share_is_that_of_the_glances() -> None:
    waiting = Waiting()
    glances(waiting, Place.WORKING, *([Place.WAITING] * 5 + [Place.WORKING] * 15))
    share = waiting.take()
    assert share is not None and abs(share - 0.25) < 0.01


def test_a_rank_that_stopped_waiting_waits_nothing_and_one_that_never_did_cannot_tell() -> None:
    waiting = Waiting()
    at_s = glances(waiting, *[Place.WORKING] * 20)
    assert waiting.take() is None
    at_s = glances(waiting, *[Place.WAITING] * 20, from_s=at_s)
    assert waiting.take() == 1.0
    for _ in range(TAKEN_TOGETHER):
        at_s = glances(waiting, *[Place.WORKING] * 20, from_s=at_s)
        share = waiting.take()
    assert share == 0.0


def test_a_glance_that_came_late_counts_as_work() -> None:
    waiting = Waiting()
    glances(waiting, *[Place.WAITING] * 11, gap_s=1.0)
    share = waiting.take()
    assert share is not None and abs(share - ABSENT_GAPS * GLANCE_EVERY_S) < 1e-6


def test_hidden_waits_make_it_unknown_for_that_report_only() -> None:
    waiting = Waiting()
    at_s = glances(waiting, *[Place.WAITING] * 10, Place.HIDDEN, *[Place.WAITING] * 10)
    assert waiting.take() is None
    glances(waiting, *[Place.WAITING] * 20, from_s=at_s)
    assert waiting.take() == 1.0


def test_gaps_differ_and_are_as_long_as_they_should_be_in_the_mean() -> None:
    gaps = [gap_s(n) for n in range(1000)]
    assert abs(sum(gaps) / len(gaps) - GLANCE_EVERY_S) < 1e-3
    assert max(gaps) <= GLANCE_EVERY_S * (1 + UNEVEN / 2)
    assert len({round(gap, 3) for gap in gaps[:20]}) > 10


def test_time_between_steps_does_not_count() -> None:
    waiting = Waiting()
    for n in range(40):
        waiting.glance(n * GLANCE_EVERY_S, Place.WAITING if n < 20 else Place.WORKING, in_step=n < 20)
    assert waiting.take() == 1.0


@given(st.lists(st.tuples(st.floats(0, 5), st.sampled_from(Place), st.booleans()), max_size=80))
def test_whatever_is_seen_the_share_is_a_share(seen: list[tuple[float, Place, bool]]) -> None:
    waiting, at_s = Waiting(), 0.0
    for passed_s, place, in_step in seen:
        at_s += passed_s
        waiting.glance(at_s, place, in_step=in_step)
    share = waiting.take()
    assert share is None or 0.0 <= share <= 1.0


def test_another_threads_wait_is_not_the_main_threads() -> None:
    inside, done = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        done.wait(20)

    thread = threading.Thread(
        target=in_file, args=("/venv/torch/distributed/distributed_c10d.py", "barrier", wait), daemon=True
    )
    thread.start()
    assert inside.wait(20)
    frames = sys._current_frames()
    assert place_of(frames[thread.ident or 0]) is Place.WAITING
    assert place_of(frames[threading.get_ident()]) is Place.WORKING
    done.set()
    thread.join(20)
