"""What the collector is told, beyond what every service is (`CommonSettings`)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from goodput_collector.domain.path_text import path_text
from goodput_common.contracts.subjects import token
from goodput_common.contracts.telemetry import Source
from goodput_common.runtime.settings import CommonSettings, Port

# interfaces of containers and of this machine alone: they carry no training traffic, and there may be hundreds
NETDEVS_IGNORED = (
    r"lo|docker\d*|br-[0-9a-f]{12}|cni\d*|cali.*|flannel.*|virbr.*|lxc.*|veth[0-9a-f]{7,}|ifb\d+|dummy\d+|tunl\d+|sit\d+"
)

JOURNAL = "journal"
"""As GOODPUT_KERNEL_LOG."""

OFF_WHEN_EMPTY = frozenset({"kernel_log", "lldp", "cloud_topology", "ras_address", "netdev_ignore"})
"""Settings with a default that an empty value switches off. Any other variable that is empty counts as not set."""


class Settings(CommonSettings):
    model_config = SettingsConfigDict(env_ignore_empty=False)  # which of them count is decided below

    http_port: Port = Field(8083, description="port of /healthz, /readyz and /metrics; 0: any that is free")
    collector_http: bool = Field(True, description="serve /healthz, /readyz and /metrics")
    provision_streams: bool = Field(
        False, description="make the bus's streams at the start; else the correlator does, and this host needs no right to"
    )
    collector_off: str = Field(
        "", description="sources not to read (as `goodput collector check` names them, separated by commas)"
    )
    kernel_log: str = Field(
        "/dev/kmsg", description="device, `journal`, or files and pipes (globs, separated by commas); empty: none"
    )
    journalctl: str = Field("journalctl", description="how to call it, as `journalctl --directory=/host/var/log/journal`")
    job_logs: str = Field("", description="logs of training processes (globs, separated by commas)")
    job_logs_of_ranks: bool = Field(
        True, description="read what registered ranks write to: their output, NCCL_DEBUG_FILE, their flight recorder's files"
    )
    flight_recorder_files: str = Field(
        "", description="where torch writes dumps, besides the run directory (globs, separated by commas)"
    )
    sys_root: Path = Field(Path("/sys"), description="sysfs, or a copy of it")
    proc_root: Path = Field(Path("/proc"), description="procfs, or a copy of it")
    rdma_ignore: str = Field("", description="RDMA devices that must not be read (names, separated by commas)")
    netdev_ignore: str = Field(
        NETDEVS_IGNORED, description="network interfaces to leave out (regular expression); empty: none"
    )
    rdma_interval_s: float = Field(1.0, ge=0.5, le=300, description="between two readings of the RDMA ports' counters")
    ethtool_interval_s: float = Field(1.0, ge=0.5, le=300, description="between two readings of the drivers' statistics")
    modules_every_s: float = Field(60.0, ge=0, le=3600, description="how often a transceiver is read; 0: never")
    devlink_interval_s: float = Field(5.0, ge=0.5, le=300, description="between two looks at the adapters' own health")
    nvml_interval_s: float = Field(1.0, ge=0.2, le=60, description="between two looks at clocks, power and temperature")
    dcgm_url: str = Field("", description="a dcgm-exporter, as http://127.0.0.1:9400/metrics; empty: none")
    dcgm_interval_s: float = Field(10.0, ge=1, le=600, description="between two readings of the dcgm-exporter")
    storage_stalled_after_s: float = Field(
        20.0, ge=2, le=3600, description="a disk or mount that has answered nothing for so long while asked has stalled"
    )
    switches: Path | None = Field(None, description="switches to ask over gNMI or SNMP (a JSON file); none: no switches")
    lldp: str = Field("listen", description="`listen`, `lldpctl`, a file with lldpctl's JSON; empty: no neighbours")
    ibnetdiscover: str = Field(
        "", description="the InfiniBand fabric whole, on one host of it: `ibnetdiscover` or another command, or a file"
    )
    cloud_topology: str = Field(
        "auto", description="where the cloud says that this host stands: `auto`, a file or a URL; empty: not asked"
    )
    training_nics: str = Field(
        "", description="adapters that training uses (globs of names, separated by commas); empty: those nearest to GPUs"
    )
    ras_address: str = Field(
        "127.0.0.1:28028", description="where the NCCL of jobs on this host answers (its NCCL_RAS_ADDR); empty: not asked"
    )
    ras_interval_s: float = Field(30.0, ge=5, le=3600, description="each query makes every process of the job answer")
    reports_together: bool = Field(
        True, description="send the reports of this host's ranks on in one message; else each rank sends its own"
    )
    process_interval_s: float = Field(0.5, ge=0.1, le=60, description="between two looks at the registered processes")
    measures_every_s: float = Field(
        5.0,
        ge=0,
        le=300,
        description="how often measurements, traffic and congestion notices are told; events, states and errors go at once",
    )
    heartbeat_s: float = Field(5.0, ge=0.5, le=300, description="how often the collector tells how it and its sources are")
    history_s: float = Field(
        600.0, ge=0, le=31_536_000, description="how old a kernel message may be to be told at the first start"
    )
    spool_dir: Path | None = Field(None, description="where messages wait for the bus; none: in the run directory")
    spool_bytes: int = Field(64 << 20, ge=1 << 20, description="bound of the spool; at it the oldest messages go")

    @model_validator(mode="before")
    @classmethod
    def _set(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value != "" or name in OFF_WHEN_EMPTY}

    @field_validator("netdev_ignore")
    @classmethod
    def _pattern(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return value

    @field_validator("dcgm_url")
    @classmethod
    def _plain_http(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme != "http" or not parts.hostname or parts.username or parts.password or parts.port == 0):
            raise ValueError("expected http://host:port/path (no https, no user, no password); empty: none")
        return value

    @field_validator("collector_off")
    @classmethod
    def _sources(cls, value: str) -> str:
        known = [source.value for source in Source if source is not Source.HEARTBEAT]
        unknown = [name for name in listed(value) if name not in known]
        if unknown:
            raise ValueError(f"unknown source {path_text(', '.join(unknown))}; there are {', '.join(known)}")
        return value

    @property
    def sources_off(self) -> frozenset[Source]:
        return frozenset(Source(name) for name in listed(self.collector_off))

    @field_validator("ras_address")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        if value and not (re.fullmatch(r".+:[0-9]{1,5}", value) and 0 < int(value.rpartition(":")[2]) <= 65535):
            raise ValueError("expected host:port, as 127.0.0.1:28028; empty: not asked")
        return value

    @field_validator("kernel_log")
    @classmethod
    def _one_log(cls, value: str) -> str:
        parts = listed(value)
        alone = [part for part in parts if part == JOURNAL or part.startswith("/dev/")]
        if alone and len(parts) > 1:
            raise ValueError(f"{alone[0]} stands alone: give it, or files and pipes")
        return value

    @field_validator("lldp")
    @classmethod
    def _neighbours(cls, value: str) -> str:
        if value and value not in ("listen", "lldpctl") and "/" not in value:
            raise ValueError("expected `listen`, `lldpctl` or the path of a file; empty: no neighbours")
        return value

    @field_validator("cloud_topology")
    @classmethod
    def _place(cls, value: str) -> str:
        if "://" in value and urlsplit(value).scheme not in ("http", "https"):
            raise ValueError("expected `auto`, the path of a file or a URL of http or https; empty: not asked")
        return value

    @field_validator("journalctl", "ibnetdiscover")
    @classmethod
    def _command(cls, value: str) -> str:
        try:
            shlex.split(value)
        except ValueError as error:
            raise ValueError(f"cannot be split into words as a shell would: {error}") from None
        return value

    @property
    def spool_directory(self) -> Path:
        """One a host name: collectors of several lab hosts share a machine."""
        return self.spool_dir if self.spool_dir is not None else self.run_dir / "collector" / token(self.host)


def load() -> Settings:
    """From the environment. Raises SettingsError."""
    given: dict[str, Any] = {}
    return Settings(**given)


def listed(text: str) -> tuple[str, ...]:
    """The parts of a setting that holds several, separated by commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
