"""Where a cloud says that this machine stands: documents of four providers, and one of our own.

A cloud hides its switches and names the layers above a machine instead; two machines that share a name are near each other.
The names are opaque, some hashed per account. What is nearest becomes `rack`, the layer above `pod`, the one above `block`:

    AWS     DescribeInstanceTopology: NetworkNodes, from the top down; CapacityBlockId of an UltraServer
    Google  physical_host_topology: cluster, block, subblock, host; or the path /block/subblock/host
    Oracle  rdmaTopologyData: HPC island, network block, local block, GPU memory fabric
    Azure   instance metadata: the placement group shares an InfiniBand network; a fault domain is *not* a rack

A document that has none of this says nothing, which is not an error; one that is not JSON is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

VALUE_MAX = 200
DEPTH_MAX = 6
WRAPPERS = (
    "Instances", "instances", "instanceSet", "resourceStatus", "physicalHostTopology", "rdmaTopologyData", "compute",
)  # fmt: skip
OWN_KEYS = ("rack", "pod", "block", "zone", "region")


class NotATopology(ValueError):
    """The document cannot be read; says why."""


def parse(text: str, *, instance: str = "") -> dict[str, str]:
    """Attributes of the host. `instance` picks it from a list of many; a list of one needs no name. Raises NotATopology."""
    stripped = text.strip()
    if stripped.startswith("/") and "\n" not in stripped:
        return _kept(_google_path(stripped))
    try:
        document = json.loads(stripped)
    except (ValueError, RecursionError) as error:
        raise NotATopology(f"not JSON: {str(error)[:80]}") from None
    found: dict[str, str] = {}
    for part in _parts(document, instance):
        for read in (_aws, _google, _oracle, _azure, _own):
            found = _kept(read(part)) | found
    return _kept(found)


def _kept(attrs: dict[str, str]) -> dict[str, str]:
    return {name: value[:VALUE_MAX] for name, value in attrs.items() if value}


def _parts(document: Any, instance: str, depth: int = 0) -> Iterator[dict[str, Any]]:
    """The objects that speak of this machine: the document, what it wraps, and of a list of machines the right one."""
    if depth > DEPTH_MAX:
        return
    if isinstance(document, list):
        ours = [each for each in document if isinstance(each, dict) and instance and instance in _names(each)]
        others = [each for each in document if isinstance(each, dict)]
        if chosen := ours or (others if len(others) == 1 else []):
            yield from _parts(chosen[0], instance, depth + 1)
        return
    if not isinstance(document, dict):
        return
    yield document
    for key in WRAPPERS:
        if key in document:
            yield from _parts(document[key], instance, depth + 1)


def _names(part: dict[str, Any]) -> set[str]:
    keys = ("InstanceId", "instanceId", "vmId", "id", "name", "hostname")
    return {_text(part.get(key)) for key in keys} - {""}


def _aws(part: dict[str, Any]) -> dict[str, str]:
    nodes = [_text(each) for each in _list(_either(part, "NetworkNodes", "networkNodes", "networkNodeSet"))]
    nodes = [each for each in nodes if each]
    found = {
        "zone": _text(_either(part, "ZoneId", "zoneId", "AvailabilityZone", "availabilityZone")),
        "placement_group": _text(_either(part, "GroupName", "groupName")),
        "instance": _text(_either(part, "InstanceId", "instanceId")),
        "instance_type": _text(_either(part, "InstanceType", "instanceType")),
        "ultraserver": _text(_either(part, "CapacityBlockId", "capacityBlockId")),
    }
    return found | dict(zip(("rack", "pod", "block"), reversed(nodes), strict=False))


def _google(part: dict[str, Any]) -> dict[str, str]:
    if "subblock" not in part and "physicalHost" not in part:
        return {}
    path = _google_path(_text(part.get("physicalHost")))
    return path | _kept(
        {
            "rack": _text(part.get("subblock")),
            "pod": _text(part.get("block")),
            "block": _text(part.get("cluster")),
            "physical_host": _text(part.get("host")),
        }
    )


def _google_path(path: str) -> dict[str, str]:
    """/block/subblock/host"""
    parts = [each for each in path.split("/") if each]
    return dict(zip(("pod", "rack", "physical_host"), parts, strict=False)) if len(parts) == 3 else {}


def _oracle(part: dict[str, Any]) -> dict[str, str]:
    return {
        "rack": _text(_either(part, "customerLocalBlock", "localBlockId")),
        "pod": _text(_either(part, "customerNetworkBlock", "networkBlockId")),
        "block": _text(_either(part, "customerHPCIslandId", "hpcIslandId")),
        "physical_host": _text(part.get("customerHostId")),
        "gpu_fabric": _text(part.get("customerGpuMemoryFabric")),
    }


def _azure(part: dict[str, Any]) -> dict[str, str]:
    if "vmId" not in part:
        return {}
    return {
        "instance": _text(part.get("vmId")),
        "instance_type": _text(part.get("vmSize")),
        "pod": _text(part.get("placementGroupId")),
        "fault_domain": _text(part.get("platformFaultDomain")),
        "zone": _text(part.get("zone")),
    }


def _own(part: dict[str, Any]) -> dict[str, str]:
    """{"rack": "...", "pod": "...", "block": "..."}, for a site that writes the document itself."""
    if "subblock" in part:
        return {}
    return {key: _text(part.get(key)) for key in OWN_KEYS}


def _either(part: dict[str, Any], *keys: str) -> Any:
    return next((part[key] for key in keys if key in part), None)


def _list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else []


def _text(given: Any) -> str:
    if isinstance(given, bool) or not isinstance(given, (str, int)):
        return ""
    return " ".join(str(given).split())
