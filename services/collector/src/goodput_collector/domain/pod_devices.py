"""Which pod has which device, from the file in which the kubelet keeps what its device plugins gave away.

    {"Data": {"PodDeviceEntries": [{"PodUID": "…", "DeviceIDs": {"0": ["0000:3b:02.1"]}}]}}

Older kubelets have a plain list of ids. An SR-IOV plugin's ids are PCI addresses of virtual functions; others' ids mean
something else and match no address. The pod's name is not in there, but the kubelet names a folder of logs after it:
`<namespace>_<name>_<uid>`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from goodput_common.contracts import ids


class _Entry(msgspec.Struct):
    pod: str = msgspec.field(name="PodUID", default="")
    devices: dict[str, list[str] | None] | list[str] | None = msgspec.field(name="DeviceIDs", default=None)


class _Data(msgspec.Struct):
    entries: list[_Entry] | None = msgspec.field(name="PodDeviceEntries", default=None)


class _Checkpoint(msgspec.Struct):
    data: _Data = msgspec.field(name="Data", default_factory=_Data)


def pods_of_devices(checkpoint: bytes) -> dict[str, str]:
    """Full PCI address (0000:3b:02.1) -> pod uid. Raises ValueError when this is no such file."""
    try:
        found = msgspec.json.decode(checkpoint, type=_Checkpoint)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not a kubelet device checkpoint: {error}") from None
    pods: dict[str, str] = {}
    for entry in found.data.entries or ():
        for device in _ids(entry.devices):
            try:
                ids.normal_pci(device)
            except ValueError:
                continue
            pods[device.lower()] = entry.pod
    return pods


def names_of_pods(folders: Iterable[str]) -> dict[str, str]:
    """Pod uid -> namespace/name, from the names of the folders of logs."""
    names = {}
    for folder in folders:
        parts = folder.split("_")
        if len(parts) == 3 and all(parts):
            names[parts[2]] = f"{parts[0]}/{parts[1]}"
    return names


def _ids(devices: dict[str, list[str] | None] | list[str] | None) -> Iterable[str]:
    if isinstance(devices, dict):
        for each in devices.values():
            yield from each or ()
    else:
        yield from devices or ()
