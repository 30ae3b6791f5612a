"""Where compiled modules are kept for the processes that a stack or a lab starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from goodput_faultlab import bytecode

HOME = {"HOME": "/home/u", "OTHER": "1"}
PREFIX = {"PYTHONPYCACHEPREFIX": "/home/u/.cache/goodput/pycache"}
UNWANTED = {"PYTHONDONTWRITEBYTECODE": "1"}


def test_beside_the_sources_where_that_is_wanted_and_possible(tmp_path: Path) -> None:
    assert bytecode.kept(HOME, tmp_path) == HOME


def test_in_the_users_cache_where_none_is_wanted_beside_the_sources(tmp_path: Path) -> None:
    assert bytecode.kept(HOME | UNWANTED, tmp_path) == HOME | PREFIX
    cache = {"XDG_CACHE_HOME": "/cache"}
    assert bytecode.kept(cache | UNWANTED, tmp_path) == cache | {"PYTHONPYCACHEPREFIX": "/cache/goodput/pycache"}


def test_in_the_users_cache_where_the_sources_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytecode.os, "access", lambda *_: False)
    assert bytecode.kept(HOME, tmp_path) == HOME | PREFIX
    (tmp_path / "__pycache__").mkdir()  # somebody compiled them there already
    assert bytecode.kept(HOME, tmp_path) == HOME


def test_a_cache_that_was_chosen_stays(tmp_path: Path) -> None:
    chosen = {"PYTHONPYCACHEPREFIX": "/mine"}
    assert bytecode.kept(HOME | UNWANTED | chosen, tmp_path) == HOME | chosen


def test_a_user_without_a_home_keeps_none(tmp_path: Path) -> None:
    assert bytecode.kept(UNWANTED, tmp_path) == UNWANTED
