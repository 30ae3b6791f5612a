"""The host's own topology: gathered when something has changed, told when it says something new.

Looking for change is cheap (three folders' names, one socket); the whole is gathered only then, and now and then. What
could not be learned is trouble of its part: without LLDP the PCI tree is told all the same. What the GPU driver knows
comes from a reader of its own (`discovery_gpus`), through `GpuFacts`: a driver that hangs holds up nothing here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from goodput_collector.adapters.discovery_host import CloudPlace, identity
from goodput_collector.adapters.discovery_memory import DiscoveryMemory, Memory, heard_end, neighbour_of
from goodput_collector.adapters.discovery_nics import own_interfaces, read_nics
from goodput_collector.adapters.lldp import LldpEar, ask_lldpd
from goodput_collector.adapters.pci import listing, names_in, read_devices
from goodput_collector.application.ports import Reading, Unreadable
from goodput_collector.domain.changes import Changes
from goodput_collector.domain.discovery import GpuFact, Inventory, Records, Remembered, draw, generation, pcie_words
from goodput_collector.domain.discovery_heard import Heard
from goodput_collector.domain.discovery_keep import Keeper, Tell, Telling, next_version
from goodput_collector.domain.lldp import Neighbour
from goodput_collector.domain.nic_log import pci_name
from goodput_collector.domain.pci_tree import PciDevice, PciKind
from goodput_common.contracts.ids import ComponentKind
from goodput_common.contracts.telemetry import Source, State
from goodput_common.contracts.topology import TopologySnapshot
from goodput_common.runtime.clock import Clock
from goodput_topology.build import InvalidFabric
from goodput_topology.graph import Fabric
from goodput_topology.merge import HOST_PREFIX
from goodput_topology.snapshot import to_snapshots

GATHER_EVERY_S = 60.0
ASK_LLDPD_EVERY_S = 30.0
PLACE_EVERY_S = 600.0


class GpuFacts:
    """What the GPU driver said last: written by one thread, read by another, always whole."""

    def __init__(self) -> None:
        self.by_pci: Mapping[str, GpuFact] = {}


class DiscoveryReader:
    """See `goodput_collector.application.ports.SourceReader`."""

    source = Source.DISCOVERY
    instance = ""
    interval_s = 5.0
    deadline_s = 15.0

    def __init__(
        self,
        *,
        fabric: str,
        host: str,
        boot_id: str,
        clock: Clock,
        memory: DiscoveryMemory,
        gpus: GpuFacts,
        ignore: re.Pattern[str],
        rdma_ignore: Collection[str] = (),
        training: Collection[str] = (),
        lldp: str = "listen",
        cloud: str = "",
        sys_root: Path = Path("/sys"),
        proc_root: Path = Path("/proc"),
        etc_root: Path = Path("/etc"),
        visible: Callable[[], frozenset[str]] | None = own_interfaces,
        settle_s: float = 10.0,
        again_s: float = 600.0,
    ) -> None:
        self._fabric, self._host, self._boot_id, self._clock = fabric, host, boot_id, clock
        self._sys_root, self._proc_root, self._etc_root = sys_root, proc_root, etc_root
        self._ignore, self._rdma_ignore, self._training = ignore, frozenset(rdma_ignore), tuple(training)
        self._visible, self._facts, self._place = visible, gpus, CloudPlace(cloud, sys_root)
        self._how = lldp
        self._ear = LldpEar(self._to_hear)
        self._troubles: dict[str, str] = {}
        self._store, self._memory = memory, memory.load()
        self._saved = Memory()
        known = {name: [neighbour_of(end)] for name, end in self._memory.heard.items()}
        known |= {name: [neighbour_of(end) for end in ends] for name, ends in self._memory.several.items()}
        self._heard = Heard()
        self._heard.restore(known, clock.monotonic_s())
        self._ends = self._heard.ends(clock.monotonic_s())
        same_boot = boot_id not in ("", "unknown") and self._memory.boot_id == boot_id
        self._remembered = Remembered(
            rails=dict(self._memory.rails),
            indexes=dict(self._memory.indexes) if same_boot else {},
            been_up=set(self._memory.been_up),
        )
        self._keeper = Keeper()
        self._telling = Telling(told=self._memory.digest, settle_s=settle_s, again_s=again_s)
        self._pcie = Changes(full_every_s=again_s)
        self._records: Records = ((), ())
        self._digest = ""
        self._devices: list[PciDevice] = []
        self._boring: set[str] = set()  # PCI addresses of no interest, as long as the bus looks the same
        self._place_attrs: dict[str, str] = {}
        self._last: tuple[object, ...] = ()
        self._gathered_s = self._asked_s = self._placed_s = float("-inf")

    def open(self) -> None:
        if self._how == "listen":
            self._part("lldp", self._ear.open)

    def wake_fd(self) -> int | None:
        return None  # neighbours speak every 30 s and cables are moved by hand: the next look is soon enough

    def close(self) -> None:
        self._ear.close()

    def read(self) -> Reading:
        now_s = self._clock.monotonic_s()
        changed = self._listen(now_s)
        seen = (listing(self._sys_root), self._facts.by_pci)
        states: list[State] = []
        if changed or seen != self._last or now_s - self._gathered_s >= GATHER_EVERY_S:
            if seen != self._last:
                self._boring.clear()
            self._last, self._gathered_s = seen, now_s
            self._gather(now_s)
            states = self._pcie.of(self._pcie_states(), now_s)
        return Reading(
            samples=states,
            trouble="; ".join(filter(None, self._troubles.values())),
            covered=tuple(
                record.id
                for record in self._records[0]
                if record.kind in (ComponentKind.GPU, ComponentKind.NIC, ComponentKind.NVSWITCH)
                and "missing" not in record.attrs
            ),
            snapshots=self._snapshots(now_s),
            kept=self._remember,
        )

    # -- gathering ---------------------------------------------------------------------------------------------------

    def _listen(self, now_s: float) -> bool:
        """Whether anybody else than before stands at the end of a cable."""
        if self._how == "listen":
            self._heard.frames(((name, said) for name, said in self._ear.heard() if not self._ignore.fullmatch(name)), now_s)
        elif self._how and now_s - self._asked_s >= ASK_LLDPD_EVERY_S:
            self._asked_s = now_s
            self._heard.table(self._part("lldp", lambda: ask_lldpd(self._how)) or {}, now_s)
        before, self._ends = self._ends, self._heard.ends(now_s)
        return list(before.items()) != list(self._ends.items())

    def _gather(self, now_s: float) -> None:
        if self._how == "listen":
            self._ear.join()
        if now_s - self._placed_s >= PLACE_EVERY_S:
            self._placed_s = now_s
            place, self._troubles["cloud"] = self._place.read()
            self._place_attrs = place or self._place_attrs
        self._devices = read_devices(self._sys_root, self._boring)
        inventory = Inventory(
            host=self._host,
            host_attrs=self._place_attrs | identity(self._sys_root, self._proc_root, self._etc_root, self._boot_id),
            pci=self._devices,
            nics=read_nics(self._sys_root, ignore=self._ignore, rdma_ignore=self._rdma_ignore, visible=self._visible),
            gpus=self._facts.by_pci,
            neighbours=self._ends,
            interfaces=self._visible() if self._visible is not None else names_in(self._sys_root / "class" / "net"),
            training=self._training,
        )
        on_bus = {pci_name(each.address) for each in self._devices}
        self._records = self._keeper.with_vanished(draw(inventory, self._remembered), on_bus)
        self._digest = hashlib.sha256(msgspec.json.encode(self._records, order="deterministic")).hexdigest()[:32]

    def _part(self, name: str, ask: Callable[[], object]) -> dict[str, list[Neighbour]] | None:
        """A part that may fail without the rest; says so."""
        try:
            found = ask()
        except Unreadable as error:
            self._troubles[name] = f"{error}{' (' + error.remedy + ')' if error.remedy else ''}"
            return None
        self._troubles.pop(name, None)
        return found if isinstance(found, dict) else None

    def _to_hear(self) -> frozenset[str]:
        names = self._visible() if self._visible is not None else frozenset[str]()
        return frozenset(name for name in names if not self._ignore.fullmatch(name))

    # -- telling -----------------------------------------------------------------------------------------------------

    def _snapshots(self, now_s: float) -> tuple[TopologySnapshot, ...]:
        tell = self._telling.decide(self._digest, now_s)
        if tell is Tell.NOTHING:
            return ()
        memory = self._memory
        if tell is Tell.CHANGED:
            now = self._clock.now()
            memory.version, memory.at_s = next_version(memory.version, now.timestamp()), now.timestamp()
            memory.digest = self._digest
        try:
            whole = Fabric.build(self._fabric, *self._records)
        except InvalidFabric as error:  # a bug of ours: say so, and leave standing what was told before
            self._troubles["records"] = str(error)
            return ()
        self._troubles.pop("records", None)
        at = datetime.fromtimestamp(memory.at_s, UTC)
        return to_snapshots(whole, source=f"{HOST_PREFIX}{self._host}", version=memory.version, at=at)

    def _remember(self) -> None:
        memory = Memory(
            version=self._memory.version,
            digest=self._memory.digest,
            at_s=self._memory.at_s,
            rails=dict(self._remembered.rails),
            been_up=sorted(self._remembered.been_up),
            boot_id=self._boot_id,
            indexes=dict(self._remembered.indexes),
            heard={name: heard_end(each) for name, each in self._ends.items()},
            several={name: [heard_end(each) for each in ends] for name, ends in self._heard.several().items()},
        )
        if memory != self._saved:
            self._saved = memory
            self._store.save(memory)

    def _pcie_states(self) -> list[State]:
        """The PCI link of each network adapter; the GPUs' own is told by their driver, and theirs slows down when idle."""
        now = self._clock.now()
        devices = {pci_name(each.address): each for each in self._devices if each.kind is PciKind.NIC and not each.pf}
        found = []
        for record in self._records[0]:
            device = devices.get(record.attrs.get("pci", "")) if record.kind is ComponentKind.NIC else None
            value = pcie_words(device.speed, device.width) if device is not None else ""
            if device is not None and value:
                attrs = {"pci": record.attrs["pci"], "gen": str(generation(device.speed)), "width": str(device.width)}
                if generation(device.speed_max) and device.width_max:
                    attrs |= {"gen_max": str(generation(device.speed_max)), "width_max": str(device.width_max)}
                found.append(State(component=record.id, name="pcie_link", observed_at=now, value=value, attrs=attrs))
        return found
