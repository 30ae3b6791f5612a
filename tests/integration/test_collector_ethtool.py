"""ethtool against the real kernel: a veth pair in a network namespace, in a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

_SCRIPT = """
import json, re, subprocess
from goodput_collector.adapters.ethtool import EthtoolReader
from goodput_collector.adapters.ethtool_ioctl import EthtoolIoctl
from goodput_common.contracts.telemetry import State
from goodput_common.runtime.clock import SystemClock

class Clock(SystemClock):
    later = 0.0
    def monotonic_s(self):
        return super().monotonic_s() + self.later

def ip(*words):
    subprocess.run(["ip", *words], check=True)

subprocess.run(["mount", "-t", "sysfs", "none", "/sys"], check=True)
ip("link", "add", "rail0", "type", "veth", "peer", "name", "far0")
ip("link", "set", "rail0", "up")
ip("link", "set", "far0", "up")
clock = Clock()
reader = EthtoolReader(host="h0", boot_id="b1", clock=clock, ignore=re.compile("lo|far.*"), virtual=True)
reader.open()
found = []
def look():
    reading = reader.read()
    found.append({
        "states": [[each.name, each.value, each.attrs] for each in reading.samples if isinstance(each, State)],
        "trouble": reading.trouble, "covered": reading.covered,
    })
look()
ip("link", "set", "far0", "down")
clock.later += 11
look()
ioctl = EthtoolIoctl()
count = ioctl.count("rail0")
names, values = ioctl.names("rail0", count), ioctl.values("rail0", count)
index = int(open("/sys/class/net/far0/ifindex").read())
print(json.dumps({"looks": found, "driver": ioctl.driver("rail0").name, "names": names,
                  "peer": values[1 + names.index("peer_ifindex")] == index}))
"""


def test_settings_statistics_and_names_come_from_the_kernel() -> None:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare and ip")
    probe = subprocess.run(["unshare", "-Urnm", "mount", "-t", "sysfs", "none", "/sys"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"a sysfs of one's own is not allowed here: {probe.stderr.decode().strip()}")
    done = subprocess.run(
        ["unshare", "-Urnm", sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    up, down = found["looks"]
    ((name, value, attrs),) = up["states"]
    assert (name, value) == ("link", "up")
    assert {"speed_mbps", "duplex", "autoneg"} <= set(attrs)
    assert [value for _, value, _ in down["states"]] == ["down"]
    assert (up["trouble"], up["covered"]) == ("", ["nic:h0/rail0/1"])
    assert (found["driver"], found["peer"]) == ("veth", True)
