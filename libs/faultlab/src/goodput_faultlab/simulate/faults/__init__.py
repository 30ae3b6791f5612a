"""Faults that the simulator can bring about: one module a cause, each with its flavours, consequences and truth."""

from __future__ import annotations

import random

from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.simulate import cascades
from goodput_faultlab.simulate.faults import (
    application,
    collective,
    driver,
    gpu,
    host,
    link,
    nic,
    nvlink,
    pcie,
    pfc,
    process,
    storage,
    straggler,
    switch,
    traces,
)
from goodput_faultlab.simulate.faults.model import Fault, Maker
from goodput_faultlab.simulate.layout import Layout
from goodput_faultlab.simulate.spec import FaultSpec
from goodput_topology.graph import Fabric

MAKERS: dict[FaultClass, dict[str, Maker]] = {
    FaultClass.GPU_OFF_BUS: gpu.OFF_BUS,
    FaultClass.GPU_MEMORY: gpu.MEMORY,
    FaultClass.NVLINK: nvlink.FLAVOURS,
    FaultClass.LINK_FLAP: link.FLAVOURS,
    FaultClass.PFC_STORM: pfc.FLAVOURS,
    FaultClass.STRAGGLER: straggler.FLAVOURS,
    FaultClass.GPU_DRIVER: driver.FLAVOURS,
    FaultClass.PCIE: pcie.FLAVOURS,
    FaultClass.NIC_HANG: nic.FLAVOURS,
    FaultClass.SWITCH_FAULT: switch.FLAVOURS,
    FaultClass.HOST_DOWN: host.FLAVOURS,
    FaultClass.STORAGE_STALL: storage.FLAVOURS,
    FaultClass.NO_HARDWARE_FAULT: application.FLAVOURS,
    FaultClass.PROCESS_DEAD: process.DEAD,
    FaultClass.PROCESS_STALL: process.STALL,
    FaultClass.COLLECTIVE_DESYNC: collective.DESYNC,
    FaultClass.UNDETERMINED: collective.UNDETERMINED,
}


def plan(spec: FaultSpec, fabric: Fabric, layout: Layout, rng: random.Random) -> Fault:
    """Settle what the specification leaves open. Raises ValueError naming the flavour that is not there."""
    flavours = MAKERS[spec.fault_class]
    flavour = spec.flavour or rng.choice(sorted(flavours))
    if flavour not in flavours:
        raise ValueError(f"{spec.fault_class.value} has no flavour {flavour!r}; choose among {', '.join(sorted(flavours))}")
    fault = flavours[flavour](spec, fabric, layout, rng)
    if not fault.symptoms:
        own = [each for each in (fault.component, *fault.also_right) if each is not None]
        fault.symptoms = traces.symptoms_of((*fault.emissions, *fault.rises), own, fabric)
    return cascades.spread(fault, fabric, layout, rng) if spec.cascade else fault
