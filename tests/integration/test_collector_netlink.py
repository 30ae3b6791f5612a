"""Carrier of real interfaces: veth pairs in a network namespace of the test's own, in a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

_PRELUDE = """
import json, re, subprocess, sys
from goodput_collector.adapters.netlink import NetlinkReader
from goodput_common.contracts.telemetry import Counter, Event, State
from goodput_common.runtime.clock import SystemClock

def ip(*words):
    subprocess.run(["ip", *words], check=True)

def told(reading):
    for each in reading.samples:
        if isinstance(each, Event):
            yield {"kind": "event", "name": each.name, "on": each.component, "count": each.count, **each.attrs}
        elif isinstance(each, Counter):
            yield {"kind": "counter", "name": each.name, "on": each.component, "delta": each.delta}
        else:
            yield {"kind": "state", "name": each.name, "on": each.component, "value": each.value, **each.attrs}

def settled(reader):
    import select
    found = list(told(reader.read()))
    while select.select([reader.wake_fd()], [], [], 0.3)[0]:
        found += told(reader.read())
    return found

ip("link", "add", "rail0", "type", "veth", "peer", "name", "far0")
ip("link", "set", "rail0", "up")
ip("link", "set", "far0", "up")
reader = NetlinkReader(host="h0", clock=SystemClock(), ignore=re.compile("lo|far.*"), full_every_s=3600)
reader.open()
first = settled(reader)
"""


def run(script: str) -> Any:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare and ip")
    command = ["unshare", "--map-root-user", "--net", sys.executable, "-c", f"{_PRELUDE}{script}"]
    probe = subprocess.run(["unshare", "--map-root-user", "--net", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"network namespaces are not allowed here: {probe.stderr.decode().strip()}")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def of(kind: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in found if each["kind"] == kind]


def test_the_first_look_is_states_and_no_events() -> None:
    found = run("print(json.dumps(first))")
    (state,) = of("state", found)
    assert (state["on"], state["name"], state["value"], state["carrier"]) == ("nic:h0/rail0/1", "operstate", "up", "1")
    assert of("event", found) == []


def test_a_carrier_lost_and_gained_is_told_with_its_counts() -> None:
    found = run(
        """
ip("link", "set", "far0", "down")
down = settled(reader)
ip("link", "set", "far0", "up")
print(json.dumps([down, settled(reader)]))
"""
    )
    down, up = found
    (lost,) = of("event", down)
    assert (lost["name"], lost["on"], lost["count"], lost["admin"]) == ("link_down", "nic:h0/rail0/1", 1, "up")
    assert [(each["name"], each["delta"]) for each in of("counter", down)] == [("carrier_down_count", 1)]
    assert [each["value"] for each in of("state", down)] == ["lowerlayerdown"]
    assert [each["name"] for each in of("event", up)] == ["link_up"]
    assert [each["value"] for each in of("state", up)] == ["up"]


def test_flaps_that_are_over_before_anybody_looks_are_counted() -> None:
    found = run(
        """
for _ in range(5):
    ip("link", "set", "far0", "down")
    ip("link", "set", "far0", "up")
print(json.dumps(settled(reader)))
"""
    )
    counts = {
        name: sum(each["count"] for each in of("event", found) if each["name"] == name) for name in ("link_down", "link_up")
    }
    assert counts == {"link_down": 5, "link_up": 5}


def test_messages_that_were_lost_are_made_up_for_by_the_counts() -> None:
    found = run(
        """
import threading
from goodput_collector.adapters.netlink_arrivals import Arrivals
listen = threading.Event()
listen.set()

class Deaf(Arrivals):  # takes nothing from the kernel while `listen` is not set
    def _receive(self):
        listen.wait(60)
        return super()._receive()

deaf = NetlinkReader(host="h0", clock=SystemClock(), ignore=re.compile("lo|far.*"), full_every_s=3600, arrivals_of=Deaf)
deaf.open()
settled(deaf)
listen.clear()
deaf._arrivals.socket.setsockopt(1, 8, 1)  # the smallest receive buffer there is
for _ in range(40):
    ip("link", "set", "far0", "down")
    ip("link", "set", "far0", "up")
listen.set()
print(json.dumps(settled(deaf)))
"""
    )
    assert sum(each["count"] for each in of("event", found) if each["name"] == "link_down") == 40


def test_an_interface_taken_down_by_somebody_is_told_apart() -> None:
    (lost,) = of("event", run('ip("link", "set", "rail0", "down")\nprint(json.dumps(settled(reader)))'))
    assert (lost["name"], lost["admin"]) == ("link_down", "down")


def test_an_interface_that_vanishes_is_a_link_down_and_a_state() -> None:
    found = run('ip("link", "del", "rail0")\nprint(json.dumps(settled(reader)))')
    assert any(each["name"] == "link_down" for each in of("event", found))
    assert of("state", found)[-1]["value"] == "removed"


def test_an_interface_that_another_namespace_is_given_is_moved_and_has_lost_nothing() -> None:
    found = run(
        """
ip("link", "set", "rail0", "down")
settled(reader)
holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo there; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
holder.stdout.readline()
ip("link", "set", "rail0", "netns", str(holder.pid))
moved = settled(reader)
holder.communicate(b"")
print(json.dumps(moved))
"""
    )
    assert of("event", found) == []
    assert [each["value"] for each in of("state", found)] == ["moved"]


def test_a_port_that_joins_and_leaves_a_bridge_keeps_its_carrier() -> None:
    found = run(
        """
if subprocess.run(["ip", "link", "add", "br0", "type", "bridge"], capture_output=True).returncode:
    print("null")
    sys.exit()
ip("link", "set", "br0", "up")
ip("link", "set", "rail0", "master", "br0")
joined = settled(reader)
ip("link", "set", "rail0", "nomaster")
print(json.dumps([joined, settled(reader)]))
"""
    )
    if found is None:
        pytest.skip("this kernel makes no bridge")
    rail0 = [[each for each in part if each["on"] == "nic:h0/rail0/1"] for part in found]
    assert [of("event", part) for part in rail0] == [[], []]
    assert [each["master"] for each in of("state", rail0[0])][-1:] == ["br0"]
    assert {each["value"] for part in rail0 for each in of("state", part)} == {"up"}


def test_ignored_interfaces_are_not_told() -> None:
    found = run(
        """
ip("link", "add", "far8", "type", "veth", "peer", "name", "far9")
ip("link", "set", "far8", "up")
ip("link", "set", "far9", "up")
ip("link", "set", "far9", "down")
print(json.dumps(settled(reader)))
"""
    )
    assert found == []
