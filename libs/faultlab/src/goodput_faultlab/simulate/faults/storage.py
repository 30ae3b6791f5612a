"""Storage that does not answer: the job stands in a checkpoint or in its input, and every GPU is fine.

A network mount that hangs on one host, the server behind it that hangs for all, a local disk. The job may only get slower
(every checkpoint, every batch) before anything stands still.
"""

from __future__ import annotations

import random

from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Source
from goodput_common.contracts.verdict import ActionKind
from goodput_faultlab.simulate import baseline, fault_lines, readings
from goodput_faultlab.simulate.faults import traces
from goodput_faultlab.simulate.faults.model import (
    MOVES_AWAY,
    Emission,
    Fault,
    Maker,
    Slowdown,
    between,
    nothing_blocks,
    on_host,
    victim_place,
)
from goodput_faultlab.simulate.layout import Layout
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_faultlab.simulate.stall import Obstacle
from goodput_topology.graph import Fabric

MOUNT, SERVER, DISK = baseline.MOUNT, baseline.SERVER, baseline.DISK
NOTICED_S = (20.0, 24.0)  # a request that stays unanswered for so long makes the collector speak of a stall
KERNEL_S = (15.0, 19.0)  # the NFS client speaks after a major time-out
FRAMES = ("checkpoint.py:71 in write_shard", "train.py:233 in save")


def _at_the_start(op: int, ranks: tuple[int, ...]) -> Obstacle:
    """A step that is under way needs no storage; the next one does not begin."""
    return Obstacle() if op else Obstacle(stops_at=dict.fromkeys(ranks, 0))


def _waits(host: str, share: float) -> list[traces.Trace]:
    """Tasks of the host that wait for I/O, as its pressure tables tell."""
    component, full = ids.host_id(host), share * 0.8
    found = traces.stands(
        Source.HOST,
        host,
        component,
        {"pressure_io_some_share": share, "pressure_io_full_share": full},
        wavers=0.04,
        ramp_s=8.0,
    )
    return found + traces.rises(
        Source.HOST, host, component, {"pressure_io_some_us": share * 1e6, "pressure_io_full_us": full * 1e6}
    )


def nfs_traces(host: str, severity: float, rng: random.Random, pid: int) -> list[traces.Trace]:
    """One client whose mount hangs."""
    component, found = ids.host_id(host), list[traces.Trace]()
    if severity >= 0.25:
        found.append(Emission(rng.uniform(*KERNEL_S), host, Source.KERNEL_LOG, fault_lines.nfs_silent(host, server=SERVER)))
    at_s = rng.uniform(*NOTICED_S)
    found += [Emission(at_s, host, Source.HOST, each) for each in readings.stalled_mount(host, MOUNT, SERVER, at_s)]
    backlog = {"nfs_backlog": between(3.0, 60.0, severity)}
    found += traces.stands(Source.HOST, host, component, backlog, wavers=0.1, ramp_s=6.0, attrs=baseline.MOUNT_ATTRS)
    found += _waits(host, between(0.15, 0.9, severity))
    found += traces.rises(Source.HOST, host, component, {f"nfs_retransmits:{MOUNT}": between(0.2, 6.0, severity)}, 4.0)
    if severity >= 0.7:
        found.append(Emission(70.0, host, Source.KERNEL_LOG, fault_lines.hung_task(host, "python3", pid)))
    return found


def _nfs(flavour: str) -> Maker:
    def make(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
        place = victim_place(spec, layout, rng)
        hosts = layout.hosts if flavour == "nfs_server" else (place.host,)
        found: list[traces.Trace] = []
        for host in hosts:
            found += nfs_traces(host, spec.severity, rng, layout.places[layout.on_host(host)[0]].pid)
        ranks = tuple(
            rank for host in hosts for rank in layout.on_host(host)[:1]
        )  # the first rank of a host writes its shard
        whole, left = flavour == "nfs_server", traces.left(found)
        return Fault(
            spec=spec,
            flavour=flavour,
            component=ids.job_id(layout.job) if whole else ids.host_id(place.host),
            also_right=tuple(ids.host_id(host) for host in hosts) if whole else (),
            ranks=ranks,
            host=None if whole else place.host,
            note=f"{SERVER}:{MOUNT} does not answer {'any host' if whole else place.host}",
            obstacle=lambda op: _at_the_start(op, ranks),
            emissions=left.emissions,
            rises=left.rises,
            levels=left.levels,
            phase="checkpoint",
            frames=FRAMES,
            cured_by=lambda kind, target: not whole and kind in MOVES_AWAY and on_host(target, place.host),
        )

    return make


def _slow_nfs(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    """The mount answers, hundreds of times slower than it should: input comes late on that host."""
    place = victim_place(spec, layout, rng)
    component, host, severity = ids.host_id(place.host), place.host, spec.severity
    ranks = layout.on_host(host)
    late = between(0.12, 1.5, severity)

    slow = {"nfs_rtt_ms": between(60.0, 2500.0, severity), "nfs_backlog": between(1.0, 30.0, severity)}
    found = traces.stands(Source.HOST, host, component, slow, wavers=0.1, ramp_s=4.0, attrs=baseline.MOUNT_ATTRS)
    found += _waits(host, between(0.2, 0.8, severity))
    found += traces.rises(Source.HOST, host, component, {f"nfs_retransmits:{MOUNT}": between(0.5, 10.0, severity)}, 2.0)
    left = traces.left(found)
    return Fault(
        spec=spec,
        flavour="nfs_slow",
        component=component,
        ranks=ranks,
        host=host,
        note=f"{SERVER}:{MOUNT} answers {host} late",
        obstacle=nothing_blocks,
        emissions=left.emissions,
        rises=left.rises,
        levels=left.levels,
        slowdown=Slowdown(factor=1.0 + late, late={rank: late * rng.uniform(0.7, 1.0) for rank in ranks}, phase="data"),
        cured_by=lambda kind, target: kind in MOVES_AWAY and on_host(target, host),
    )


def _disk(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    """A local disk takes requests and completes none."""
    place = victim_place(spec, layout, rng)
    host, component, severity = place.host, ids.host_id(place.host), spec.severity
    found: list[traces.Trace] = []
    for n in range(1 + round(severity * 4)):
        made = fault_lines.nvme_timeout(host, 0, rng.randrange(1, 900))
        found.append(Emission(rng.uniform(8.0, 12.0) + 3.0 * n, host, Source.KERNEL_LOG, made))
    if severity >= 0.6:
        broken = fault_lines.disk_error(host, DISK, rng.randrange(10_000, 9_000_000))
        found.append(Emission(rng.uniform(20.0, 24.0), host, Source.KERNEL_LOG, broken))
    at_s = rng.uniform(*NOTICED_S)
    found += [
        Emission(at_s, host, Source.HOST, each) for each in readings.stalled_disk(host, DISK, rng.randrange(8, 64), at_s)
    ]

    busy = {"disk_busy_share": 1.0, "disk_in_flight": float(rng.randrange(33, 96))}
    found += traces.stands(Source.HOST, host, component, busy, wavers=0.02, attrs=baseline.DISK_ATTRS)
    found += _waits(host, between(0.1, 0.6, severity))
    left = traces.left(found)
    return Fault(
        spec=spec,
        flavour="disk",
        component=component,
        also_right=(ids.rank_id(layout.job, place.rank),),
        ranks=(place.rank,),
        host=host,
        note=f"{DISK} of {host} completes no request",
        obstacle=lambda op: _at_the_start(op, (place.rank,)),
        emissions=left.emissions,
        rises=left.rises,
        levels=left.levels,
        phase="data",
        frames=("dataset.py:131 in read_shard", "dataloader.py:1284 in _get_data"),
        cured_by=lambda kind, target: kind is ActionKind.RESTART_JOB or (kind in MOVES_AWAY and on_host(target, host)),
    )


FLAVOURS: dict[str, Maker] = {"nfs": _nfs("nfs"), "nfs_server": _nfs("nfs_server"), "nfs_slow": _slow_nfs, "disk": _disk}
