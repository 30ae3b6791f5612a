"""Trace context goes through a process that records nothing."""

from __future__ import annotations

import pytest

from goodput_common.runtime.tracing import current_traceparent, span

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_there_is_no_traceparent_outside_a_trace() -> None:
    assert current_traceparent() == ""
    with span("work"):
        assert current_traceparent() == ""


def test_a_message_keeps_its_trace_across_a_process_without_an_sdk() -> None:
    with span("handle", parent=PARENT, subject="goodput.job.x"):
        assert current_traceparent() == PARENT
        with span("inner"):
            assert current_traceparent() == PARENT
    assert current_traceparent() == ""


@pytest.mark.parametrize("junk", ["", "00-zz", "garbage", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_an_invalid_traceparent_is_no_trace(junk: str) -> None:
    with span("handle", parent=junk):
        assert current_traceparent() == ""


def test_an_empty_parent_does_not_continue_the_span_around_it() -> None:
    with span("outer", parent=PARENT), span("other message", parent=""):
        assert current_traceparent() == ""
