"""Notifications as switches send them, in short."""

from __future__ import annotations

from typing import Any

from goodput_collector.domain.gnmi_path import parse_path
from goodput_collector.domain.gnmi_update import Notice


def notice(path: str, value: Any, *, target: str = "", at_ns: int = 0) -> Notice:
    return Notice(at_ns, target, ((parse_path(path), value),))


def gone(path: str, *, target: str = "") -> Notice:
    return Notice(0, target, (), (parse_path(path),))
