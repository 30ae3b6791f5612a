"""An alarm wakes whoever polls it, once, and not when it was cleared."""

from __future__ import annotations

import select

import pytest

from goodput_common.runtime.alarm import Alarm


def rings(alarm: Alarm, within_s: float) -> bool:
    poll = select.poll()
    poll.register(alarm.fd, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


@pytest.mark.parametrize("seconds", [0.0, 0.001, -1.0])
def test_it_rings_once(seconds: float) -> None:
    alarm = Alarm()
    alarm.set(seconds)
    assert rings(alarm, 20)
    alarm.heard()
    assert not rings(alarm, 0)
    alarm.heard()  # for nothing: that is no error
    alarm.close()


def test_what_is_cleared_does_not_ring() -> None:
    alarm = Alarm()
    alarm.set(0.005)
    alarm.clear()
    assert not rings(alarm, 0.05)
    alarm.close()


def test_the_last_setting_counts() -> None:
    alarm = Alarm()
    alarm.set(3600)
    alarm.set(0.001)
    assert rings(alarm, 20)
    alarm.close()
    alarm.close()
