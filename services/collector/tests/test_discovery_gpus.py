"""What the GPU driver, or nvidia-smi in its place, knows of the topology."""

# ruff: noqa: N802, N815 - the binding's own names

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from collector_fixtures import Rig, Ticking
from discovery_trees import h100, plain_vm
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.adapters.discovery import GpuFacts
from goodput_collector.adapters.discovery_gpus import GpuFactsReader
from goodput_collector.adapters.nvml_library import NvmlLibrary
from goodput_collector.application.ports import Absent, Unreadable
from goodput_collector.domain.discovery import GpuFact
from goodput_collector.domain.discovery_smi import parse_query, parse_topo, with_links
from goodput_common.contracts.telemetry import Source, SourceStatus

GPUS = ("0000:1b:00", "0000:43:00", "0000:52:00")


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        self.value = value


class FabricInfo(ctypes.Structure):
    _fields_ = [("clusterUuid", ctypes.c_uint8 * 16), ("cliqueId", ctypes.c_uint), ("state", ctypes.c_uint)]


class Binding:
    """pynvml's names, with three GPUs: two links to a switch and one to the next GPU each."""

    NVMLError = NVMLError
    NVML_ERROR_INVALID_ARGUMENT = 2
    c_nvmlGpuFabricInfo_v2_t = FabricInfo

    def __init__(self) -> None:
        self.users = 0
        self.lost: set[int] = set()
        self.cluster = bytes(range(16))
        self.hang: threading.Event | None = None

    def nvmlInit(self) -> None:
        self.users += 1

    def nvmlShutdown(self) -> None:
        self.users -= 1

    def nvmlDeviceGetCount(self) -> int:
        if self.hang is not None:
            self.hang.wait(20)
        return len(GPUS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index in self.lost:
            raise NVMLError(15)
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"0000{GPUS[handle]}.0".encode())

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:
        raise NVMLError(3)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        if link >= 4:
            raise NVMLError(2)
        if link == 3:
            raise NVMLError(3)  # not wired
        return 2 if link < 2 else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:
        return SimpleNamespace(busId=f"{GPUS[(handle + 1) % len(GPUS)]}.0")

    def nvmlDeviceGetGpuFabricInfoV(self, handle: int, pointer: Any) -> None:
        info = pointer._obj
        info.clusterUuid[:] = self.cluster
        info.cliqueId, info.state = 3, 3


def reader(tmp_path: Path, nvml: Binding | None, **more: Any) -> tuple[GpuFactsReader, GpuFacts]:
    def load() -> Any:
        if nvml is None:
            raise Absent("no library")
        return nvml

    tree = h100(tmp_path)
    facts = GpuFacts()
    return GpuFactsReader(
        facts, host="h7", sys_root=tree.root, library=NvmlLibrary(sys_root=tree.root, load=load), **more
    ), facts


def test_the_driver_tells_identity_links_and_fabric_and_is_let_go_of(tmp_path: Path) -> None:
    nvml = Binding()
    source, facts = reader(tmp_path, nvml)
    source.open()
    assert set(source.read().covered or ()) == {f"gpu:h7/{pci}" for pci in GPUS}
    assert facts.by_pci["0000:1b:00"] == GpuFact(
        index=0,
        uuid="GPU-0",
        links={"switch": 2, "0000:43:00": 1},
        cluster="00010203-0405-0607-0809-0a0b0c0d0e0f",
        clique="3",
    )
    assert nvml.users == 0


def test_a_lost_gpu_does_not_hide_the_others_and_zeros_name_no_fabric(tmp_path: Path) -> None:
    nvml = Binding()
    nvml.lost, nvml.cluster = {1}, bytes(16)
    source, facts = reader(tmp_path, nvml)
    source.read()
    assert set(facts.by_pci) == {"0000:1b:00", "0000:52:00"}
    assert facts.by_pci["0000:52:00"].index == 2
    assert facts.by_pci["0000:52:00"].cluster == ""


def test_without_the_library_nvidia_smi_is_read(tmp_path: Path) -> None:
    words = {"--query-gpu=index,pci.bus_id,uuid,name": QUERY, "topo": TOPO}
    source, facts = reader(tmp_path, None, smi=lambda *given: words[given[0]])
    source.read()
    assert facts.by_pci["0000:43:00"] == GpuFact(index=1, uuid="GPU-b", model="NVIDIA H100", links={"switch": 18})


def test_a_host_without_gpus_is_absent_and_one_without_any_tool_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Absent, match="no NVIDIA GPU"):
        GpuFactsReader(GpuFacts(), host="h7", sys_root=plain_vm(tmp_path / "vm").root).open()
    monkeypatch.setenv("PATH", "/nonexistent")
    source, _ = reader(tmp_path, None)
    with pytest.raises(Unreadable, match="nor nvidia-smi"):
        source.read()
    source, _ = reader(tmp_path / "other", None, smi=lambda *_: "No devices were found\n")
    with pytest.raises(Unreadable, match="lists no GPU"):
        source.read()


async def test_a_driver_that_hangs_is_unknown_and_what_was_learned_stands(tmp_path: Path) -> None:
    nvml, ticking = Binding(), Ticking()
    source, facts = reader(tmp_path, nvml)
    source.deadline_s, source.interval_s = 0.2, 0.01
    async with Rig(tmp_path, source, ticking) as rig:
        await rig.until(lambda: len(facts.by_pci) == 3, "the first answer")
        release = nvml.hang = threading.Event()
        await rig.until(lambda: rig.condition(Source.DISCOVERY, "gpus").status is SourceStatus.UNKNOWN, "unknown")
        seen = ticking.reads
        await rig.until(lambda: ticking.reads > seen + 20, "the neighbour's schedule")
        assert len(facts.by_pci) == 3
        nvml.hang = None
        release.set()
        await rig.until(lambda: rig.condition(Source.DISCOVERY, "gpus").status is SourceStatus.OK, "well again")


# -- nvidia-smi's words ------------------------------------------------------------------------------------------------

QUERY = """0, 00000000:1B:00.0, GPU-a, NVIDIA H100
1, 00000000:43:00.0, GPU-b, NVIDIA H100
2, 00000000:52:00.0, GPU-c, NVIDIA H100
"""
TOPO = """\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tNV18\tPXB\t0-47\t0
GPU1\tNV18\t X \tNV18\tSYS\t0-47\t0
GPU2\tNV18\tNV18\t X \tSYS\t48-95\t1
NIC0\tPXB\tSYS\tSYS\t X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def test_topo_through_a_switch_and_between_neighbours() -> None:
    assert parse_topo(TOPO) == {0: {1: 18, 2: 18}, 1: {0: 18, 2: 18}, 2: {0: 18, 1: 18}}
    bridged = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV4\tSYS\nGPU1\tNV4\tX\tSYS\nGPU2\tSYS\tSYS\tX\n"
    gpus, unread = parse_query(QUERY + "junk\n")
    assert unread == 1
    assert with_links(gpus, parse_topo(bridged))["0000:1b:00"].links == {"0000:43:00": 4}
    assert with_links(gpus, parse_topo(bridged))["0000:52:00"].links == {}


@given(st.text(max_size=300) | st.lists(st.sampled_from([*TOPO.split("\n"), *QUERY.split("\n")])).map("\n".join))
def test_no_words_crash_and_no_line_is_lost(text: str) -> None:
    gpus, unread = parse_query(text)
    assert len(gpus) + unread <= len([line for line in text.splitlines() if line.strip()])
    assert len(set(text.splitlines())) > 20 or unread or gpus or not text.strip()
    with_links(gpus, parse_topo(text))
