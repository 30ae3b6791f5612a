"""NVML, loaded when it is there and initialised once for everybody in this process.

The binding is large, so it is imported only where the driver's library can be loaded. NVML counts its users: only when the
last of them has shut it down does the next one start afresh, and only afresh does it see a GPU that was reset, or a driver
that was loaded again. So the users here share one initialisation, and `renew` asks all of them to let go and come back.

While NVML is initialised this process holds the GPUs' device files open. A driver module cannot be unloaded meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from goodput_collector.application.ports import Absent, Unreadable
from goodput_collector.application.small_file import small_text
from goodput_collector.domain.gpu_presence import Gpu
from goodput_collector.domain.gpu_return import DRIVER_NOT_LOADED, words
from goodput_common.contracts import ids

LIBRARY = "libnvidia-ml.so.1"
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
GPUS_MAX = 64

Nvml = Any  # the module pynvml: it has no types


class NoLibrary(Unreadable):
    """GPUs stand on the bus and the driver's library is not here."""


class NvmlLibrary:
    """Shared by the readers of one collector; all methods may be called from any thread."""

    def __init__(self, *, sys_root: Path = Path("/sys"), load: Callable[[], Nvml] | None = None) -> None:
        self._sys_root = sys_root
        self._load = load or load_nvml
        self._lock = threading.Lock()
        self._nvml: Nvml | None = None
        self._users: set[str] = set()
        self._renewing = False

    def acquire(self, user: str) -> Nvml:
        """The binding, initialised. Raises Absent, Unreadable."""
        with self._lock:
            if user in self._users and self._nvml is not None:
                return self._nvml
            if self._renewing and self._users:
                raise Unreadable("waiting for NVML to be started anew")
            self._renewing = False
            nvml = self._loaded()
            if not self._users:
                self._init(nvml)
            self._nvml = nvml
            self._users.add(user)
            return nvml

    def release(self, user: str) -> None:
        """Never raises."""
        with self._lock:
            if user not in self._users:
                return
            self._users.discard(user)
            if not self._users and self._nvml is not None:
                with contextlib.suppress(self._nvml.NVMLError):  # the driver is gone already
                    self._nvml.nvmlShutdown()
                self._nvml = None

    def renew(self) -> None:
        """Ask everybody to release and acquire again."""
        with self._lock:
            self._renewing = bool(self._users)

    @property
    def renewing(self) -> bool:
        """Whether everybody is asked to let go. Who asked does so last, when it is `alone`, and acquires at once: until then
        it goes on with what there is."""
        return self._renewing

    def alone(self, user: str) -> bool:
        with self._lock:
            return self._users == {user}

    def renewal_failed(self) -> None:
        """Somebody cannot let go (a call hangs): go on with what there is."""
        with self._lock:
            self._renewing = False

    def _loaded(self) -> Nvml:
        """GPUs that stand on the bus are not absent because nobody gave their driver's library to this container. Raises
        Absent, NoLibrary."""
        try:
            return self._load()
        except Absent as error:
            if not (gpus := len(usable_gpus(self._sys_root))):
                raise
            reason = f"{gpus} NVIDIA GPU(s) on the PCI bus, which cannot be asked ({error})"
            raise NoLibrary(reason, remedy="install the driver; in a container add the NVIDIA runtime") from None

    def _init(self, nvml: Nvml) -> None:
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            code = int(error.value)
            if code == DRIVER_NOT_LOADED and not nvidia_gpus(self._sys_root):
                raise Absent("no NVIDIA GPU: its library is installed, and there is no such device on the PCI bus") from None
            reason, remedy = words(code)
            raise Unreadable(reason, remedy=remedy) from None

    def incarnation(self) -> str:
        """Another one each time the kernel module is loaded."""
        try:
            return str((self._sys_root / "module" / "nvidia").stat().st_ino)
        except OSError:
            return ""


def load_nvml() -> Nvml:
    """The binding, with the driver's library behind it. Raises Absent."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        raise Absent(f"no NVIDIA driver: there is no {LIBRARY}") from None
    import pynvml  # type: ignore[import-untyped,unused-ignore]

    return pynvml


def identify(nvml: Nvml, handle: object, index: int, host: str) -> Gpu:
    """Raises NVMLError when not even its address is told."""
    attrs = {"index": str(index)}
    with contextlib.suppress(ValueError):  # garbled: its index has to do
        attrs["pci"] = ids.normal_pci(str(nvml.nvmlDeviceGetPciInfo(handle).busId))
    for name, function in (("uuid", "nvmlDeviceGetUUID"), ("model", "nvmlDeviceGetName")):
        with contextlib.suppress(nvml.NVMLError, UnicodeDecodeError):
            attrs[name] = str(getattr(nvml, function)(handle))
    return Gpu(component=ids.gpu_id(host, attrs.get("pci", index)), attrs=attrs)


def nvidia_gpus(sys_root: Path) -> dict[str, str]:
    """The NVIDIA GPUs on the PCI bus: address -> kernel driver that has it (empty: none)."""
    found = {}
    try:
        devices = sorted((sys_root / "bus" / "pci" / "devices").iterdir())
    except OSError:
        return {}
    for device in devices:
        try:
            if small_text(device / "vendor") != _NVIDIA or not small_text(device / "class").startswith(_DISPLAY):
                continue
            address = ids.normal_pci(device.name)
        except (OSError, ValueError):
            continue
        try:
            found[address] = (device / "driver").resolve(strict=True).name
        except OSError:
            found[address] = ""
        if len(found) >= GPUS_MAX:
            break
    return found


def usable_gpus(sys_root: Path) -> dict[str, str]:
    """Those that this host would use itself: one that is passed to a virtual machine is not."""
    return {address: driver for address, driver in nvidia_gpus(sys_root).items() if not driver.startswith("vfio")}
