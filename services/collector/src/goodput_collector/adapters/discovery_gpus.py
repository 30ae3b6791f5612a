"""What the GPU driver knows of the topology: UUIDs, where NVLinks lead, the fabric that a GPU belongs to.

Asked rarely and let go of again at once, so that nobody who wants to reload the driver waits for discovery. Where the
binding's library is missing and `nvidia-smi` is there, its words are read instead. A call that hangs hangs here only:
what was learned before stands.
"""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from goodput_collector.adapters.discovery import GpuFacts
from goodput_collector.adapters.nvml_library import NoLibrary, NvmlLibrary, nvidia_gpus
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.domain.discovery import GpuFact
from goodput_collector.domain.discovery_smi import parse_query, parse_topo, with_links
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Source

GPUS_MAX = 64
LINKS_MAX = 36
SMI_WITHIN_S = 10.0
_USER = "discovery"
_QUERY = ("--query-gpu=index,pci.bus_id,uuid,name", "--format=csv,noheader")
_SWITCH, _CPU = 2, 1  # NVML's kinds of far end: 0 GPU, 1 IBM NPU, 2 switch
_READY = 3  # fabric state: registration completed


class GpuFactsReader:
    """See `goodput_collector.application.ports.SourceReader`. Publishes nothing by itself: `facts` goes into the
    snapshot."""

    source = Source.DISCOVERY
    instance = "gpus"
    interval_s = 120.0
    deadline_s = 30.0

    def __init__(
        self,
        facts: GpuFacts,
        *,
        host: str,
        sys_root: Path = Path("/sys"),
        library: NvmlLibrary | None = None,
        smi: Callable[..., str] | None = None,
    ) -> None:
        self._facts = facts
        self._host = host
        self._sys_root = sys_root
        self._library = library or NvmlLibrary(sys_root=sys_root)
        self._smi = smi or run_smi

    def open(self) -> None:
        if not nvidia_gpus(self._sys_root):
            raise Absent("no NVIDIA GPU on the PCI bus")

    def wake_fd(self) -> int | None:
        return None

    def read(self) -> Reading:
        try:
            found = self._by_library()
        except (Absent, NoLibrary):
            found = self._by_words()
        if dict(self._facts.by_pci) != found:
            self._facts.by_pci = found
        return Reading(covered=tuple(ids.gpu_id(self._host, pci) for pci in found))

    def close(self) -> None:
        self._library.release(_USER)

    def _by_library(self) -> dict[str, GpuFact]:
        nvml = self._library.acquire(_USER)
        try:
            found = {}
            for index in range(min(int(nvml.nvmlDeviceGetCount()), GPUS_MAX)):
                with contextlib.suppress(nvml.NVMLError, ValueError):  # one GPU is lost: the others can still be asked
                    handle = nvml.nvmlDeviceGetHandleByIndex(index)
                    pci = ids.normal_pci(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
                    found[pci] = gpu_fact(nvml, handle, index)
            return found
        except nvml.NVMLError as error:
            raise Unreadable(f"NVML: {error}") from None
        finally:
            self._library.release(_USER)

    def _by_words(self) -> dict[str, GpuFact]:
        """Raises Absent, Unreadable."""
        gpus, _ = parse_query(self._smi(*_QUERY))
        if not gpus:
            raise Unreadable("nvidia-smi lists no GPU", remedy="is the driver loaded?")
        return with_links(gpus, parse_topo(self._smi("topo", "-m")))


def gpu_fact(nvml: Any, handle: Any, index: int) -> GpuFact:
    """One GPU; what it does not answer is left open."""
    cluster, clique = _fabric(nvml, handle)
    return GpuFact(
        index=index,
        uuid=_asked(nvml, "nvmlDeviceGetUUID", handle),
        model=_asked(nvml, "nvmlDeviceGetName", handle),
        links=_links(nvml, handle),
        cluster=cluster,
        clique=clique,
    )


def _asked(nvml: Any, function: str, handle: Any) -> str:
    try:
        return _text(getattr(nvml, function)(handle))
    except (nvml.NVMLError, UnicodeDecodeError, AttributeError):
        return ""


def _links(nvml: Any, handle: Any) -> dict[str, int]:
    """Where the links that are wired lead. A link that is down now still leads there."""
    ends: Counter[str] = Counter()
    for link in range(LINKS_MAX):
        try:
            kind = _remote_kind(nvml, handle, link)
            if kind == _SWITCH:
                ends["switch"] += 1
            elif kind == _CPU:
                ends["cpu"] += 1
            else:
                ends[ids.normal_pci(_text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId))] += 1
        except (ValueError, AttributeError):
            continue
        except nvml.NVMLError as error:
            if int(getattr(error, "value", 0)) == int(getattr(nvml, "NVML_ERROR_INVALID_ARGUMENT", 2)):
                break  # beyond the last link
    return dict(sorted(ends.items()))


def _remote_kind(nvml: Any, handle: Any, link: int) -> int:
    function = getattr(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", None)
    return int(function(handle, link)) if function is not None else 0


def _fabric(nvml: Any, handle: Any) -> tuple[str, str]:
    """(cluster UUID, clique) once the GPU has joined a fabric; a UUID of zeros means that it belongs to none."""
    for structure in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
        try:
            info = getattr(nvml, structure)()
            nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        except (nvml.NVMLError, AttributeError):  # a driver or a binding that does not know this version
            continue
        cluster = bytes(info.clusterUuid)
        if int(info.state) != _READY or not any(cluster):
            return "", ""
        return str(uuid.UUID(bytes=cluster)), str(int(info.cliqueId))
    return "", ""


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def run_smi(*words: str) -> str:
    """What `nvidia-smi` prints. Raises Unreadable."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise Unreadable("neither the NVIDIA driver's library nor nvidia-smi is here")
    try:
        done = subprocess.run([program, *words], capture_output=True, timeout=SMI_WITHIN_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unreadable(f"nvidia-smi did not answer within {SMI_WITHIN_S:g} s") from None
    except OSError as error:
        raise Unreadable(f"nvidia-smi cannot be run: {error.strerror or error}") from None
    if done.returncode:
        raise Unreadable(f"nvidia-smi failed: {done.stdout.decode('utf-8', 'replace').strip()[:200]}")
    return done.stdout.decode("utf-8", "replace")
