"""The engines, in order. Each is a function from a case to findings; adding a fault class is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from goodput_correlator.domain.case import Case
from goodput_correlator.domain.diagnosis import (
    collective_desync,
    gpu_driver,
    gpu_memory,
    gpu_off_bus,
    host_down,
    link_errors,
    link_flap,
    nic_hang,
    no_hardware_fault,
    nvlink,
    pcie,
    pfc_storm,
    process_dead,
    process_stall,
    storage_stall,
    straggler,
    switch_fault,
    undetermined,
)
from goodput_correlator.domain.finding import Finding

Engine = Callable[[Case], tuple[Finding, ...]]

ENGINES: tuple[Engine, ...] = (
    gpu_off_bus.diagnose,
    gpu_memory.diagnose,
    nvlink.diagnose,
    gpu_driver.diagnose,
    pcie.diagnose,
    nic_hang.diagnose,
    switch_fault.diagnose,
    link_flap.diagnose,
    link_errors.diagnose,
    pfc_storm.diagnose,
    host_down.diagnose,
    storage_stall.diagnose,
    process_dead.diagnose,
    collective_desync.diagnose,
    process_stall.diagnose,
    no_hardware_fault.diagnose,
    undetermined.diagnose,
)

SLOW_ENGINES: tuple[Engine, ...] = (
    pfc_storm.diagnose,
    switch_fault.diagnose,
    link_flap.diagnose,
    link_errors.diagnose,
    straggler.diagnose,
    pcie.diagnose,
    storage_stall.diagnose,
)
"""What can make steps slow without stopping them."""
