"""Anybody who may publish under goodput.rejected can write anything there: it is read all the same."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_common.bus.rejected import Rejection, from_stored, to_headers

NOW = datetime(2026, 1, 2, tzinfo=UTC)
OWN = [f"goodput-{field}" for field in ("reason", "stream", "subject", "sequence", "durable", "deliveries", "received-at")]


def test_a_rejection_is_read_as_it_was_written() -> None:
    rejection = Rejection(
        reason="no such rank: 7 %",
        stream="JOB",
        subject="goodput.job.f.j.rank_exited",
        sequence=41,
        durable="correlator-f-job",
        deliveries=3,
        received_at=datetime(2026, 1, 1, tzinfo=UTC),
        headers={"ce-id": "m1"},
        body=b"x",
        rejected_at=NOW,
    )
    assert from_stored(to_headers(rejection), b"x", NOW) == rejection


@pytest.mark.parametrize("number", ["many", "", "-1", "1.5", "0x10", "1_000", " 1", "9" * 5000, "\u0663"])
def test_a_number_that_is_none_is_empty(number: str) -> None:
    read = from_stored({"goodput-sequence": number, "goodput-deliveries": number}, b"", NOW)
    assert (read.sequence, read.deliveries) == (0, 0)


@pytest.mark.parametrize("time", ["yesterday", "", "2026-01-01T00:00:00", "2026-13-01T00:00:00Z"])
def test_a_time_that_is_none_is_when_it_was_rejected(time: str) -> None:
    assert from_stored({"goodput-received-at": time}, b"", NOW).received_at == NOW


@given(st.dictionaries(st.one_of(st.sampled_from(OWN), st.text(max_size=20)), st.text(max_size=40)))
def test_any_headers_are_read_and_can_be_shown(headers: dict[str, str]) -> None:
    read = from_stored(headers, b"", NOW)
    assert read.received_at.tzinfo is not None
    assert 0 <= read.sequence < 1 << 63
    assert msgspec.json.encode([read.reason, read.stream, read.subject, read.durable, read.deliveries])
