"""Healthy noise: the events and states of machines on which nothing relevant is wrong. What they measure is in `measures`.

Each kind is a Poisson process a host, with a generator of its own. Everything here is true of real clusters and has led
somebody's monitoring astray: Xids of other processes, the management port that flaps, ports nobody has cabled, hosts of
other jobs that really are broken.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Source
from goodput_faultlab.simulate import lines
from goodput_faultlab.simulate.clockwork import Clockwork
from goodput_faultlab.simulate.collectors import Collectors
from goodput_faultlab.simulate.spec import SimulationSpec

OTHER_HOSTS_MAX = 16
BACKGROUND_FAULTS = 6
BACKGROUND_UNTIL_S = 180.0


class Background(NamedTuple):
    """A real fault on a host of another job: a GPU off the bus, or a port that is down for a while."""

    at_s: float
    component: ComponentId
    down_s: float


class Noise:
    """`others` are hosts of other jobs, `background` what is really broken there."""

    def __init__(self, spec: SimulationSpec, clockwork: Clockwork, collectors: Collectors) -> None:
        self._spec = spec
        self._clockwork = clockwork
        self._collectors = collectors
        mine = (*spec.hosts, *spec.spares)
        self.others = tuple(host for host in spec.fabric.hosts() if host not in set(mine))[:OTHER_HOSTS_MAX]
        self.background = self._plan_background()

    def start(self) -> None:
        noise = self._spec.noise
        for host in (*self._spec.hosts, *self._spec.spares):
            self._poisson("aer", noise.corrected_aer, host, self._aer)
            self._poisson("management", noise.management_flaps, host, self._management_flap)
            self._poisson("xid", noise.application_xids, host, self._application_xid)
            self._poisson("chatter", noise.kernel_chatter, host, self._chatter)
            if noise.unprovisioned_ports:
                self._clockwork.after(0.5, partial(self._port_states, host))
        for each in self.background:
            self._clockwork.after(each.at_s, partial(self._elsewhere, each))

    def _poisson(self, kind: str, an_hour: float, host: str, happen: Callable[[str], None]) -> None:
        if an_hour <= 0:
            return
        rng = self._clockwork.rng(f"noise/{kind}/{host}")

        def again() -> None:
            happen(host)
            self._clockwork.after(rng.expovariate(an_hour / 3600), again)

        self._clockwork.after(rng.expovariate(an_hour / 3600), again)

    # ------------------------------------------------------------------------------------------------- kinds

    def _aer(self, host: str) -> None:
        self._collectors.add(host, Source.KERNEL_LOG, lines.corrected(host, self._clockwork.rng("aer").randrange(8)))

    def _management_flap(self, host: str) -> None:
        nic = ids.nic_id(host, "eth0")
        if nic in self._spec.fabric:
            self._flap(host, nic, self._clockwork.rng("management").uniform(0.5, 8.0))

    def _flap(self, host: str, nic: str, down_s: float) -> None:
        fabric = self._spec.fabric

        def change(up: bool) -> None:
            self._collectors.add(host, Source.KERNEL_LOG, lines.kernel_link(fabric, nic, up))
            for made in lines.netlink_link(fabric, nic, up):
                self._collectors.add(host, Source.NETLINK, made)

        change(False)
        self._clockwork.after(down_s, lambda: change(True))

    def _application_xid(self, host: str) -> None:
        """Somebody's test program or a health check died: processes that are no ranks of this job."""
        rng, fabric = self._clockwork.rng("xid"), self._spec.fabric
        gpu = rng.choice(fabric.gpus_of_host(host))
        pid = rng.randrange(1_000_000, 4_000_000)
        kind = rng.choice((13, 31, 43, 45))
        if kind == 13:
            text = "Graphics SM Warp Exception on (GPC 2, TPC 3, SM 1): Out Of Range Address"
            made = lines.xid(fabric, gpu, 13, text, pid=pid, gpc="2", tpc="3")
        elif kind == 31:
            text = (
                "Ch 00000012, intr 00000000. MMU Fault: ENGINE GRAPHICS faulted @ 0x7f12_34560000. "
                "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
            )
            made = lines.xid(fabric, gpu, 31, text, pid=pid, channel="00000012")
        elif kind == 43:
            made = lines.xid(fabric, gpu, 43, "Ch 00000010", pid=pid, channel="00000010")
        else:
            made = lines.victim(fabric, gpu, pid)
        self._collectors.add(host, Source.KERNEL_LOG, made)

    def _chatter(self, host: str) -> None:
        nic = ids.nic_id(host, "mlx5_8")
        if nic in self._spec.fabric:
            made = lines.cable(self._spec.fabric, nic, "Cable unplugged", error=False)
            self._collectors.add(host, Source.KERNEL_LOG, made)

    def _port_states(self, host: str) -> None:
        """Said in full when the collector starts; the ports nobody uses are down and disabled."""
        fabric = self._spec.fabric
        for nic in fabric.nics_of_host(host):
            used = fabric.carries_traffic(nic) is True
            up = used or fabric.attr(nic, "netdev") == "eth0"
            self._collectors.add(host, Source.NETLINK, lines.operstate_of(fabric, nic, up, admin_up=up))
            if fabric.attr(nic, "rdma"):
                self._collectors.add(host, Source.RDMA, lines.port_state(fabric, nic, used, disabled=not used))

    def _plan_background(self) -> tuple[Background, ...]:
        """One near each fault of the job, the others by chance within the first minutes."""
        if not self._spec.noise.other_jobs or not self.others:
            return ()
        rng, fabric = self._clockwork.rng("elsewhere"), self._spec.fabric
        at_s = [max(3.0, fault.at_s + rng.uniform(-3.0, 3.0)) for fault in self._spec.faults]
        at_s += [rng.uniform(3.0, BACKGROUND_UNTIL_S) for _ in range(BACKGROUND_FAULTS)]
        planned = []
        for when_s in sorted(at_s):
            gpu = rng.choice(fabric.gpus_of_host(rng.choice(self.others)))
            nics = fabric.nics_of_gpu(gpu)
            flaps = bool(nics) and rng.random() < 0.4
            planned.append(Background(when_s, nics[0] if flaps else gpu, rng.uniform(1.0, 20.0) if flaps else 0.0))
        return tuple(planned)

    def _elsewhere(self, each: Background) -> None:
        host = ids.host_of(each.component) or ""
        if each.down_s:
            self._flap(host, each.component, each.down_s)
            return
        fabric = self._spec.fabric
        self._collectors.add(host, Source.KERNEL_LOG, lines.xid(fabric, each.component, 79))
        for gpu in fabric.gpus_of_host(host)[:2]:
            if gpu != each.component:
                self._collectors.add(host, Source.KERNEL_LOG, lines.victim(fabric, gpu, 4242, 79))
