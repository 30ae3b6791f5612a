"""What faults of several classes leave in the same way: readings that repeat, errors at the ring neighbours, a tail of
consequences on the other ranks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Probe, Source
from goodput_faultlab.ledger import Symptom
from goodput_faultlab.simulate import lines, readings
from goodput_faultlab.simulate.collectors import MakeSample
from goodput_faultlab.simulate.faults.model import Emission, Level, Rise, ring_neighbours
from goodput_faultlab.simulate.layout import Layout, Place
from goodput_topology.graph import Fabric

RETRIES_S = (7.0, 13.0)  # when the retransmissions of a queue pair are used up
REPEATS_LAST_S = 80.0  # states are told again for so long after a fault has begun

Trace = Emission | Rise | Level


class Left(NamedTuple):
    """Traces by their kinds, as a fault holds them."""

    emissions: tuple[Emission, ...]
    rises: tuple[Rise, ...]
    levels: tuple[Level, ...]


def left(found: Iterable[Trace]) -> Left:
    each = list(found)
    return Left(
        tuple(one for one in each if isinstance(one, Emission)),
        tuple(one for one in each if isinstance(one, Rise)),
        tuple(one for one in each if isinstance(one, Level)),
    )


def rises(source: Source, host: str, component: ComponentId, per_s: Mapping[str, float], from_s: float = 0.0) -> list[Trace]:
    """Counters of one component, each with what is added a second."""
    return [
        Rise(host=host, source=source, component=component, name=name, per_s=each, from_s=from_s)
        for name, each in per_s.items()
    ]


def stands(
    source: Source, host: str, component: ComponentId, at: Mapping[str, float], *, wavers: float = 0.05, ramp_s: float = 0.0,
    attrs: Mapping[str, str] = MappingProxyType({}),
) -> list[Trace]:  # fmt: skip
    """Measurements of one component. `wavers` is a share of each value."""
    return [
        Level(
            host=host, source=source, component=component, name=name, value=value, wavers=abs(value) * wavers, ramp_s=ramp_s,
            attrs=attrs,
        )
        for name, value in at.items()
    ]  # fmt: skip


def again(host: str, source: Source, make: MakeSample, first_s: float, every_s: float) -> list[Trace]:
    """A state that is told in full at intervals."""
    count = int((REPEATS_LAST_S - first_s) // every_s) + 1
    return [Emission(first_s + n * every_s, host, source, make) for n in range(count)]


def nic_of(fabric: Fabric, layout: Layout, rank: int) -> ComponentId:
    """The adapter that a rank uses. Raises ValueError where it has none."""
    nics = fabric.nics_of_gpu(layout.places[rank].gpu)
    if not nics:
        raise ValueError(f"{layout.places[rank].gpu} has no NIC on its rail; this fault needs one")
    return nics[0]


def ranks_of_nic(fabric: Fabric, layout: Layout, nic: ComponentId) -> tuple[int, ...]:
    host = ids.host_of(nic) or ""
    return tuple(rank for rank in layout.on_host(host) if nic in fabric.nics_of_gpu(layout.places[rank].gpu))


def around(fabric: Fabric, nic: ComponentId) -> tuple[ComponentId, ...]:
    """The cable of an adapter and the port at its other end, as far as they are known."""
    return tuple(each for each in (fabric.link_of(nic), fabric.peer_of(nic)) if each is not None)


def peers_time_out(
    fabric: Fabric, layout: Layout, ranks: Sequence[int], rng: random.Random, window_s: tuple[float, float] = RETRIES_S
) -> list[Trace]:
    """The ring neighbours' reads are retried and given up: error 12, which names two ends, of which neither need be
    guilty."""
    found: list[Trace] = []
    for rank in ranks:
        for peer in dict.fromkeys(ring_neighbours(layout, rank)):
            if peer in ranks:
                continue
            near, far = (fabric.nics_of_gpu(layout.places[each].gpu) for each in (peer, rank))
            if near and far:
                made = lines.net_error(fabric, near[0], far[0], layout.places[peer])
                found.append(Emission(rng.uniform(*window_s), layout.places[peer].host, Source.JOB_LOG, made))
                found += _retried(fabric, near[0], rng)
    return found


def _retried(fabric: Fabric, nic: ComponentId, rng: random.Random) -> list[Trace]:
    host, device = ids.host_of(nic) or "", fabric.attr(nic, "rdma")
    if not device:
        return []
    port, a_second, until_s = ids.nic_id(host, device), rng.uniform(5.0, 50.0), rng.uniform(4.0, 8.0)
    return [
        Rise(host=host, source=Source.RDMA, component=port, name=name, per_s=each, until_s=until_s)
        for name, each in (("local_ack_timeout_err", a_second), ("roce_adp_retrans", a_second * 2))
    ]


def symptoms_of(found: Iterable[Trace], own: Iterable[ComponentId], fabric: Fabric) -> tuple[Symptom, ...]:
    """What traces show at components that are not the culprit's own, each once, by the fabric's own names."""
    mine, symptoms = set(own), {}
    for each in found:
        shown = each.make(lines.ANY_TIME) if isinstance(each, Emission) else each
        component = fabric.canonical(shown.component)
        if component not in mine and not isinstance(shown, Probe):
            symptoms[component, str(shown.name)] = Symptom(component=component, what=str(shown.name))
    return tuple(symptoms.values())


def far_port(fabric: Fabric, nic: ComponentId, at_s: float, up: bool) -> list[Trace]:
    """The switch's word on the other end of an adapter's cable."""
    port = fabric.peer_of(nic)
    if port is None or not port.startswith("port:"):
        return []
    return [Emission(at_s, readings.switch_name(port), Source.SWITCH, each) for each in readings.switch_port(port, up)]


def victims(
    fabric: Fabric, places: Iterable[Place], at_s: float, rng: random.Random, spread_s: float = 1.0
) -> list[Emission]:
    """Xid 45 without a cause on healthy GPUs: their processes were killed and the driver cleans up."""
    return [
        Emission(
            at_s + rng.uniform(0.0, spread_s), place.host, Source.KERNEL_LOG, lines.victim(fabric, place.gpu, place.pid)
        )
        for place in places
    ]
