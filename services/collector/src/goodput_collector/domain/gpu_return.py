"""What an NVML return code says, and about whom: one call, one GPU, or the driver as a whole.

A driver answers "not supported" for what a chip, a mode (MIG) or an old version lacks: that is nobody's fault and no
trouble. "GPU is lost" is about one GPU and final until somebody resets it. A driver that is unloaded or exchanged under a
running process takes all GPUs with it, and NVML has to be initialised anew. `Unknown Error` alone proves nothing: it also
comes from a GPU that has fallen off the bus, so it counts only when a GPU says nothing else and most others are well
(`gpu_presence`). All other codes, of which each version has more, never say that a GPU is gone.
"""

from __future__ import annotations

import enum


class Meaning(enum.StrEnum):
    FINE = "fine"
    LACKING = "lacking"  # this chip, mode or driver has no such thing
    FORBIDDEN = "forbidden"
    LOST = "lost"  # this GPU is gone
    RESET = "reset"  # this GPU needs a reset
    DRIVER = "driver"  # all of them: the driver went away or does not fit
    SUSPECT = "suspect"  # this GPU may be gone, or the driver is in trouble
    UNSURE = "unsure"  # no answer, for a reason that has nothing to do with being there


UNINITIALIZED = 1
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
UNKNOWN = 999

_MEANINGS = {
    0: Meaning.FINE,
    UNINITIALIZED: Meaning.DRIVER,
    2: Meaning.LACKING,  # invalid argument: a link or a sensor beyond the last one
    3: Meaning.LACKING,  # not supported
    NO_PERMISSION: Meaning.FORBIDDEN,
    6: Meaning.LACKING,  # not found
    DRIVER_NOT_LOADED: Meaning.DRIVER,
    FUNCTION_NOT_FOUND: Meaning.LACKING,
    GPU_IS_LOST: Meaning.LOST,
    RESET_REQUIRED: Meaning.RESET,
    17: Meaning.FORBIDDEN,  # the operating system has blocked the request
    LIB_RM_VERSION_MISMATCH: Meaning.DRIVER,
    21: Meaning.LACKING,  # no data
    22: Meaning.LACKING,  # ECC is not supported on a virtual GPU
    25: Meaning.LACKING,  # a structure of another version
    26: Meaning.LACKING,  # deprecated, and taken out
    UNKNOWN: Meaning.SUSPECT,
}

_WORDS = {
    UNINITIALIZED: ("NVML is not initialised", ""),
    NO_PERMISSION: (
        "not allowed to ask the NVIDIA driver",
        "give the collector read access to /dev/nvidiactl and /dev/nvidia*",
    ),
    8: ("a GPU's auxiliary power is not connected", "see to the GPU's power cables"),
    DRIVER_NOT_LOADED: ("the NVIDIA driver is not loaded", "load it (modprobe nvidia); the kernel log says why it is not"),
    TIMEOUT: ("a GPU has not answered the driver in time", "see the kernel log; a hung GPU usually takes a reboot"),
    11: ("the NVIDIA driver has an interrupt problem", "see the kernel log"),
    GPU_IS_LOST: ("a GPU has fallen off the bus", "reset the GPU, or reboot the host"),
    RESET_REQUIRED: ("a GPU needs a reset", "reset the GPU (nvidia-smi --gpu-reset) with no process on it"),
    LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA driver and its library are of different versions: one was exchanged while the other stayed",
        "reload the driver or reboot, then restart the collector",
    ),
    UNKNOWN: ("the NVIDIA driver says Unknown Error", "see the kernel log"),
}


def meaning(code: int) -> Meaning:
    return _MEANINGS.get(code, Meaning.UNSURE)


def words(code: int) -> tuple[str, str]:
    """(what is wrong, what to do about it)."""
    return _WORDS.get(code, (f"the NVIDIA driver answers with error {code}", "see the kernel log"))
