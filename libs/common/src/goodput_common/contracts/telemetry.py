"""What a collector says about its host: batches of samples, and a heartbeat that names every source's health.

A batch comes from one source on one host. `seq` counts the batches of (host, source, boot_id) from 1 without gaps, also
through a spool: a hole or silence makes that source *unknown*, which is neither healthy nor broken. `boot_id` is the
host's boot and, behind a dot, a name for the numbers themselves, which begin anew when a collector has lost its spool.
Samples of a batch get their event ids from the message id and their position (`<message id>#<n>`), so a doubled batch
gives the same evidence.

All times are timezone-aware UTC as the host's clock saw them; clocks of two hosts may differ by 2 s.
"""

from __future__ import annotations

import enum
from datetime import datetime

import msgspec

from goodput_common.contracts.ids import ComponentId


class Source(enum.StrEnum):
    """Where samples come from. One adapter a source, each on its own schedule."""

    KERNEL_LOG = "kernel_log"
    NETLINK = "netlink"
    RDMA = "rdma"
    FLIGHT_RECORDER = "flight_recorder"
    PROCESS = "process"
    HEARTBEAT = "heartbeat"
    JOB_LOG = "job_log"
    NVML = "nvml"  # the GPU driver, asked directly
    DCGM = "dcgm"  # the GPUs as a dcgm-exporter tells them
    ETHTOOL = "ethtool"  # NIC statistics, link settings, transceivers
    DEVLINK = "devlink"  # health reporters of NIC drivers
    RDMA_EVENTS = "rdma_events"  # asynchronous events of RDMA devices
    SWITCH = "switch"  # a switch's ports, asked over gNMI or SNMP
    HOST = "host"  # pressure, memory, disks, machine checks
    RAS = "ras"  # NCCL's own status socket
    DISCOVERY = "discovery"  # what is built in and what it is cabled to
    PROBES = "probes"  # small packets sent along the paths that training uses


class EventName(enum.StrEnum):
    """Things that happen once, each read from one line or one change of state."""

    XID = "xid"  # attrs: xid, pci, sub-code and cause where the line has them
    SXID = "sxid"  # attrs: sxid, pci, nvswitch
    GPU_LOST = "gpu_lost"  # fallen off the bus without an Xid (rm_init_adapter failed, NVML lost)
    LINK_DOWN = "link_down"  # attrs: netdev, source of the word
    LINK_UP = "link_up"
    CABLE = "cable"  # transceiver: plugged, unplugged, error, high temperature
    NIC_HANG = "nic_hang"  # command time-out, missed health counter, unrecoverable error
    AER = "aer"  # attrs: severity corrected | uncorrected | fatal, pci
    PROCESS_EXITED = "process_exited"  # attrs: pid, signal or code where known, clean true | false
    PROCESS_STOPPED = "process_stopped"  # stopped or frozen from outside (SIGSTOP, freezer); attrs: pid, state
    PROCESS_CONTINUED = "process_continued"
    NCCL_WATCHDOG = "nccl_watchdog"  # attrs: rank, group, op, seq
    NCCL_NET_ERROR = "nccl_net_error"  # attrs: device, status, local and remote address
    NCCL_ASYNC_EVENT = "nccl_async_event"  # attrs: device, event
    HOST_STALL = "host_stall"  # hung task, lockup, OOM kill; attrs: what
    BOOT = "boot"
    LOG_GAP = "log_gap"  # messages that were lost before anybody could read them; attrs: missed
    MACHINE_CHECK = "machine_check"  # attrs: cpu or memory controller, corrected true | false
    THROTTLED = "throttled"  # a clock was held down; attrs: reason
    DEVICE_HEALTH = "device_health"  # a driver's health reporter changed; attrs: reporter, state
    ADDRESS_CHANGED = "address_changed"  # GID, LID or partition key of an RDMA port; attrs: what, from, to
    PAUSE_STORM = "pause_storm"  # PFC watchdog or the NIC's own: attrs: priority, state stormed | restored
    STORAGE_STALL = "storage_stall"  # attrs: mount or device, what


class Severity(enum.StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    FATAL = "fatal"


class Event(msgspec.Struct, frozen=True, kw_only=True, tag="event", tag_field="type", omit_defaults=True):
    """One thing that happened. `count` > 1 stands for repeats folded into the first within [observed_at, last_at]."""

    component: ComponentId
    name: EventName
    observed_at: datetime
    severity: Severity = Severity.INFO
    excerpt: str = ""
    attrs: dict[str, str] = {}
    count: int = 1
    last_at: datetime | None = None


class CounterDoubt(enum.StrEnum):
    """Why a delta may be off."""

    NONE = "none"
    SATURATED = "saturated"  # the counter stands at its ceiling: the delta is a lower bound
    RESET = "reset"  # the counter started anew: the delta is what it counted since
    WRAPPED = "wrapped"  # passed its width once: corrected


class Counter(msgspec.Struct, frozen=True, kw_only=True, tag="counter", tag_field="type", omit_defaults=True):
    """A counter's increase over `interval_s` seconds that end at `observed_at`. First readings have no delta: not sent."""

    component: ComponentId
    name: str
    observed_at: datetime
    delta: int
    interval_s: float
    value: int
    doubt: CounterDoubt = CounterDoubt.NONE


class State(msgspec.Struct, frozen=True, kw_only=True, tag="state", tag_field="type", omit_defaults=True):
    """What a thing is now (operstate `up`, port state `ACTIVE`). Sent on change and in full at intervals."""

    component: ComponentId
    name: str
    observed_at: datetime
    value: str
    attrs: dict[str, str] = {}


class Gauge(msgspec.Struct, frozen=True, kw_only=True, tag="gauge", tag_field="type", omit_defaults=True):
    """A measurement that goes up and down; its unit is last in its name (`temperature_c`, `power_w`). Sent when it has
    moved by more than its source's noise, and in full at intervals."""

    component: ComponentId
    name: str
    observed_at: datetime
    value: float
    attrs: dict[str, str] = {}


class Probe(msgspec.Struct, frozen=True, kw_only=True, tag="probe", tag_field="type", omit_defaults=True):
    """How one flow of probes from one NIC port to another fared over `interval_s` seconds that end at `observed_at`.

    Routers choose a way by the flow, so all probes of a flow cross the same components, and other flows between the same two
    ports other ones. A probe bears six time stamps: the prober hands it over (T1), its NIC sends it (T2), the responder's
    NIC takes it (T3) and sends the answer (T4), the prober's NIC takes that (T5) and the prober gets it (T6). Hence three
    delays: network (T5-T2)-(T4-T3), responder T4-T3, prober (T6-T1)-(T5-T2). Each stays within one clock, and a slow host
    does not look like a slow network. Delays are of the probes that were answered, -1 where that is none or not measured.
    """

    component: ComponentId  # the NIC port that probes
    target: ComponentId  # the NIC port that answers
    flow: int  # UDP source port, or IPv6 flow label
    observed_at: datetime
    interval_s: float
    sent: int
    lost: int = 0  # not answered when the prober gave them up
    late: int = 0  # answered, but after the prober's deadline
    path: tuple[ComponentId, ...] = ()  # what the probes crossed (links, ports, switches), in order; () is not known
    answer_path: tuple[ComponentId, ...] = ()  # the same of the answers, which may take another way; () is not known
    network_us_p50: float = -1.0
    network_us_p99: float = -1.0
    responder_us_p50: float = -1.0
    responder_us_p99: float = -1.0
    prober_us_p50: float = -1.0
    prober_us_p99: float = -1.0
    attrs: dict[str, str] = {}


Sample = Event | Counter | State | Gauge | Probe


class TelemetryBatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one source of one host saw in one interval."""

    fabric: str
    host: str
    source: Source
    boot_id: str
    seq: int
    observed_from: datetime
    observed_to: datetime
    samples: tuple[Sample, ...] = ()


class SourceStatus(enum.StrEnum):
    OK = "ok"
    UNKNOWN = "unknown"  # not readable now; `reason` says why
    ABSENT = "absent"  # this host has no such thing


class SourceHealth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reader of a source. `instance` tells those of one source apart (a switch, an endpoint). `covered` are the
    components that its last read looked at: what is named by none is *not seen*, which is not *fine*."""

    source: Source
    status: SourceStatus
    reason: str = ""
    last_seq: int = 0
    instance: str = ""
    covered: tuple[ComponentId, ...] = ()
    covered_more: int = 0  # components beyond those that fit


class CollectorHeartbeat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sent every few seconds: silence means *unknown*, and `sources` tells fine from not seen."""

    fabric: str
    host: str
    boot_id: str
    seq: int
    at: datetime
    interval_s: float
    sources: tuple[SourceHealth, ...] = ()
    spooled_batches: int = 0
    dropped_batches: int = 0
    thinned_to_s: float = 0.0  # measurements and traffic are told only so often, because the bus does not take more
