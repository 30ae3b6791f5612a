"""The ledger is on disk before the fault, and a crash at any byte loses at most the entry being written."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.ledger import Ledger, LedgerDamaged, LedgerEntry

AT = datetime(2026, 1, 1, tzinfo=UTC)


def entry(number: int) -> LedgerEntry:
    return LedgerEntry(
        id=f"e{number}", scenario="link-down", fault_class=FaultClass.LINK_FLAP,
        component="link:nic:h1/rail0/1--port:leaf0/h1", also_right=("nic:h1/rail0/1",), ranks=(2, 3), host="h1",
        injected_at=AT + timedelta(seconds=number), note="ü — cable",
    )  # fmt: skip


def test_an_absent_file_is_an_empty_ledger(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "none.jsonl").entries() == ()


def test_entries_come_back_in_order_and_a_cleared_one_in_its_last_form(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "sub" / "ledger.jsonl")
    ledger.write(entry(1))
    ledger.write(entry(2))
    ledger.clear(entry(1), AT + timedelta(seconds=9))
    first, second = Ledger(ledger.path).entries()
    assert first.cleared_at == AT + timedelta(seconds=9)
    assert (first.id, second) == ("e1", entry(2))


def test_a_written_entry_is_in_the_file_when_write_returns(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.write(entry(1))
    assert ledger.path.read_bytes().endswith(b"\n")


@settings(max_examples=30, deadline=None)
@given(st.integers(min_value=1))
def test_a_torn_last_line_is_forgiven_and_the_next_entry_is_not_glued_to_it(cut: int) -> None:

    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.jsonl")
        ledger.write(entry(1))
        whole = ledger.path.stat().st_size
        ledger.write(entry(2))
        torn = ledger.path.read_bytes()[: whole + cut % (whole - 1)]
        ledger.path.write_bytes(torn)
        assert [each.id for each in ledger.entries()] == ["e1"]
        ledger.write(entry(3))
        assert [each.id for each in ledger.entries()] == ["e1", "e3"]


def test_a_damaged_line_in_the_middle_names_file_and_line(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.write(entry(1))
    with ledger.path.open("ab") as file:
        file.write(b'{"id": "x"}\n')
    ledger.write(entry(2))
    with pytest.raises(LedgerDamaged) as raised:
        ledger.entries()
    assert f"{ledger.path}:2:" in str(raised.value)
    assert "scenario" in str(raised.value)


def test_a_line_without_end_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"x" * (3 << 20))
    with pytest.raises(LedgerDamaged, match="longer than"):
        Ledger(path).entries()
