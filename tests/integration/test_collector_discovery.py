"""LLDP over a real wire, and a lab host that discovers itself: veth pairs in a network namespace of the test's own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "collector" / "tests"))

from discovery_trees import Tree
from fake_nvml import table as fake

_PRELUDE = """
import json, re, socket, struct, subprocess, sys, tempfile
from pathlib import Path
from goodput_collector.adapters.discovery import DiscoveryReader, GpuFacts
from goodput_collector.adapters.discovery_memory import DiscoveryMemory
from goodput_common.runtime.clock import SystemClock

class Clock(SystemClock):
    ahead_s = 0.0
    def monotonic_s(self):
        return super().monotonic_s() + self.ahead_s

def ip(*words):
    subprocess.run(["ip", *words], check=True)

def tlv(kind, value):
    return struct.pack("!H", kind << 9 | len(value)) + value

def lldpdu(switch, port):
    mac = bytes.fromhex("aabbccddee01")
    body = tlv(1, b"\\x04" + mac) + tlv(2, b"\\x05" + port) + tlv(3, b"\\x00\\x78") + tlv(5, switch)
    body += tlv(7, b"\\x00\\x04\\x00\\x04") + tlv(0, b"")
    return bytes.fromhex("0180c200000e") + mac + bytes.fromhex("88cc") + body

def send(interface, frame):
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as wire:
        wire.bind((interface, 0))
        wire.send(frame)

ip("link", "set", "lo", "up")
for n in ("rail0", "rail1"):
    ip("link", "add", n, "type", "veth", "peer", "name", "far" + n)
    ip("link", "set", n, "up")
    ip("link", "set", "far" + n, "up")

folder = Path(tempfile.mkdtemp())
clock = Clock()

def reader(memory="d.json"):
    made = DiscoveryReader(fabric="f", host="h0", boot_id="b", clock=clock, memory=DiscoveryMemory(folder / memory),
        gpus=GpuFacts(), ignore=re.compile("lo|far.*"), settle_s=0.0, sys_root=folder / "sys")
    made.open()
    return made

def told(made):
    clock.ahead_s += 5
    reading = made.read()
    reading.kept()
    components = {each.id: each.attrs for part in reading.snapshots for each in part.components}
    cables = [[each.a, each.b] for part in reading.snapshots for each in part.edges if each.relation.value == "cabled"]
    return {"components": components, "cables": cables, "trouble": reading.trouble}
"""


def run(script: str) -> Any:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare and ip")
    command = ["unshare", "--map-root-user", "--net", "--mount", sys.executable, "-c", f"{_PRELUDE}{script}"]
    probe = subprocess.run([*command[:4], "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"namespaces are not allowed here: {probe.stderr.decode().strip()}")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_frame_on_the_wire_becomes_a_cable() -> None:
    found = run(
        """
made = reader()
before = told(made)
send("farrail0", lldpdu(b"leaf0", b"Ethernet8"))
print(json.dumps([before, told(made)]))
"""
    )
    before, after = found
    assert (before["cables"], before["trouble"]) == ([], "")
    assert after["cables"] == [["nic:h0/rail0/1", "port:leaf0/Ethernet8"]]
    assert after["components"]["switch:leaf0"]["mac"] == "aa:bb:cc:dd:ee:01"


def test_what_this_host_sends_and_rubbish_on_the_wire_make_no_neighbour() -> None:
    found = run(
        """
made = reader()
told(made)
send("rail0", lldpdu(b"myself", b"rail0"))
send("farrail1", lldpdu(b"leaf1", b"E1")[:30])
send("farrail1", bytes.fromhex("0180c200000e aabbccddee01 88cc") + b"\\xff" * 60)
print(json.dumps([told(made), made._ear.garbage]))
"""
    )
    after, garbage = found
    assert (after["cables"], garbage) == ([], 2)


def test_a_cable_moved_to_another_port_is_told_anew_and_survives_a_restart() -> None:
    found = run(
        """
made = reader()
send("farrail0", lldpdu(b"leaf0", b"Ethernet8"))
first = told(made)
send("farrail0", lldpdu(b"leaf0", b"Ethernet16"))
second = told(made)
made.close()
print(json.dumps([first, second, told(reader())]))
"""
    )
    first, second, again = found
    assert first["cables"] == [["nic:h0/rail0/1", "port:leaf0/Ethernet8"]]
    assert second["cables"] == again["cables"] == [["nic:h0/rail0/1", "port:leaf0/Ethernet16"]]


def test_an_interface_that_comes_later_is_heard_too() -> None:
    found = run(
        """
made = reader()
told(made)
ip("link", "add", "rail9", "type", "veth", "peer", "name", "farrail9")
ip("link", "set", "rail9", "up")
ip("link", "set", "farrail9", "up")
clock.ahead_s += 60
told(made)
send("farrail9", lldpdu(b"leaf9", b"E1"))
print(json.dumps(told(made)))
"""
    )
    assert found["cables"] == [["nic:h0/rail9/1", "port:leaf9/E1"]]


def test_without_the_right_to_listen_the_rest_is_told_and_what_it_needs() -> None:
    found = run(
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # of the capget and capset calls, version 3
data = (ctypes.c_uint32 * 6)()
assert libc.capget(header, data) == 0
data[0] &= ~(1 << 13)  # CAP_NET_RAW, of the effective ones
assert libc.capset(header, data) == 0
print(json.dumps(told(reader())))
"""
    )
    assert "not allowed to listen for LLDP (give the collector CAP_NET_RAW" in found["trouble"]
    assert "host:h0" in found["components"]


def test_a_lab_host_that_discovers_itself_agrees_with_the_labs_drawing() -> None:
    found = run(
        """
from datetime import UTC, datetime
from goodput_faultlab.lab.plan import LabPlan
from goodput_faultlab.lab.topology import snapshot
from goodput_topology.graph import Fabric
plan = LabPlan(hosts=2, fabric="f")
drawn = snapshot(plan, datetime.now(UTC))
made = reader()
send("farrail0", lldpdu(b"leaf0", b"h0"))
clock.ahead_s += 5
seen = made.read().snapshots
alone, joined = Fabric.from_snapshots("f", [drawn]), Fabric.from_snapshots("f", [drawn, *seen])
print(json.dumps({
    "contradictions": [str(each) for each in joined.contradictions],
    "more": sorted(set(joined.components) - set(alone.components)),
    "less": sorted(set(alone.components) - set(joined.components)),
}))
"""
    )
    assert found == {"contradictions": [], "more": [], "less": []}


@pytest.mark.skipif(fake.compiler() is None, reason="needs a C compiler")
def test_the_real_binding_tells_uuids_and_the_fabric_of_each_gpu(tmp_path: Path) -> None:
    """The double of NVIDIA's library, loaded by nvidia-ml-py; its GPUs stand in a tree on disk."""
    table = fake.Table(tmp_path / "table")
    table.gpus(2)
    tree = Tree(tmp_path)
    for gpu in range(2):
        tree.gpu("pci0000:00", f"{fake.pci(gpu)}.0")
    script = """
import json, sys
from pathlib import Path
from goodput_collector.adapters.discovery import GpuFacts
from goodput_collector.adapters.discovery_gpus import GpuFactsReader
facts = GpuFacts()
made = GpuFactsReader(facts, host="h0", sys_root=Path(sys.argv[1]))
made.open()
made.read()
print(json.dumps({pci: [each.index, each.uuid, each.cluster[:2], each.clique] for pci, each in facts.by_pci.items()}))
"""
    environment = fake.environment(table.path, fake.build(tmp_path / "lib"))
    command = [sys.executable, "-c", script, str(tree.root)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        fake.pci(0): [0, "GPU-00000000", "ab", "5"],
        fake.pci(1): [1, "GPU-00000001", "ab", "5"],
    }
