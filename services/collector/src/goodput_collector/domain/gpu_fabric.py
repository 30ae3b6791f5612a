"""The NVLink fabric that a GPU is part of: registered or not, in which clique, and what its health mask says.

On machines with NVSwitch a GPU can do nothing over NVLink before the fabric manager has registered it (`completed`). GPUs
with the same cluster UUID and clique reach each other over NVLink. The mask packs several answers of two bits each, where
0 means "not told": such an answer is left out, for it is neither good nor bad.
"""

from __future__ import annotations

from datetime import datetime

from goodput_collector.domain.gpu_presence import Gpu
from goodput_common.contracts.telemetry import State

_STATES = ("not_supported", "not_started", "in_progress", "completed")
_SUMMARIES = {1: "healthy", 2: "unhealthy", 3: "limited_capacity"}
_YES_NO = {"degraded_bandwidth": 0, "route_recovery": 2, "route_unhealthy": 4, "access_timeout_recovery": 6}
_ASSIGNED = {1: "true", 2: "false"}
_CONNECTED = {1: "connected", 2: "disconnected"}
_MISCONFIGURED = {
    2: "incorrect_sysguid",
    3: "incorrect_chassis_serial",
    4: "no_partition",
    5: "insufficient_nvlinks",
    6: "incompatible_firmware",
    7: "invalid_location",
    8: "gpu_state_invalid",
}


def health(mask: int) -> dict[str, str]:
    """What the mask says, without what it does not say."""
    said = {}
    for name, shift in _YES_NO.items():
        answer = mask >> shift & 0x3
        if answer in (1, 2):
            said[name] = "true" if answer == 1 else "false"
    configuration = mask >> 8 & 0xF
    if configuration > 1:
        said["misconfigured"] = _MISCONFIGURED.get(configuration, str(configuration))
    if (assigned := _ASSIGNED.get(mask >> 12 & 0x3)) is not None:
        said["partition_assigned"] = assigned
    if (connected := _CONNECTED.get(mask >> 14 & 0x3)) is not None:
        said["fabric_manager"] = connected
    return said


def fabric_state(
    gpu: Gpu, *, cluster: bytes, clique: int, state: int, status: int, mask: int, summary: int, at: datetime
) -> State:
    """`status` is the return code with which the registration ended. `mask` and `summary` are 0 where not told."""
    value = _STATES[state] if 0 <= state < len(_STATES) else f"state_{state}"
    attrs = {"clique": str(clique), "status": str(status)} | health(mask)
    if any(cluster):
        text = cluster.hex()
        attrs["cluster_uuid"] = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:32]}"
    if (summed := _SUMMARIES.get(summary)) is not None:
        attrs["summary"] = summed
    return State(component=gpu.component, name="fabric", observed_at=at, value=value, attrs=attrs)
