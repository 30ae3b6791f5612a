"""What a person is told about a source beyond what its reader says: what switches it on, where it was told to look, and why
it may show nothing. For `check` only; nothing here changes what is read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from goodput_collector.adapters.nvml_library import usable_gpus
from goodput_collector.adapters.process import registered_ranks
from goodput_collector.settings import Settings
from goodput_collector.wiring.given import Given
from goodput_common.contracts.telemetry import Source
from goodput_common.runtime.logs import redact
from goodput_common.runtime.settings import ENV_PREFIX

SWITCHED_ON_BY = {
    Source.KERNEL_LOG: "GOODPUT_KERNEL_LOG=/dev/kmsg",
    Source.DCGM: "GOODPUT_DCGM_URL=http://127.0.0.1:9400/metrics",
    Source.JOB_LOG: "GOODPUT_JOB_LOGS=<globs>",
    Source.RAS: "GOODPUT_RAS_ADDRESS=127.0.0.1:28028",
    Source.SWITCH: "GOODPUT_SWITCHES=<file of JSON>",
}
"""What a source that is not read by itself is told by."""

TOLD_BY = {
    Source.KERNEL_LOG: ("kernel_log", "journalctl"),
    Source.NETLINK: ("netdev_ignore",),
    Source.RDMA: ("rdma_ignore", "sys_root"),
    Source.RDMA_EVENTS: ("rdma_ignore", "sys_root"),
    Source.FLIGHT_RECORDER: ("flight_recorder_files", "run_dir"),
    Source.PROCESS: ("run_dir", "proc_root"),
    Source.JOB_LOG: ("job_logs", "job_logs_of_ranks", "run_dir"),
    Source.NVML: ("sys_root",),
    Source.DCGM: ("dcgm_url",),
    Source.ETHTOOL: ("netdev_ignore", "sys_root"),
    Source.DEVLINK: ("sys_root",),
    Source.SWITCH: ("switches",),
    Source.HOST: ("proc_root", "sys_root"),
    Source.RAS: ("ras_address",),
    Source.DISCOVERY: ("lldp", "cloud_topology", "ibnetdiscover", "training_nics", "sys_root"),
}
"""The settings that say where a source looks. Named with one that fails or shows nothing, where they were set."""

RUNNING = "docs/collector/running.md"
OF_RANKS = (Source.PROCESS, Source.FLIGHT_RECORDER, Source.JOB_LOG, Source.RAS)


def where_told(settings: Settings) -> dict[Source, str]:
    """By source, the variables that were set and say where it looks: `GOODPUT_LLDP=/x.json`."""
    return {
        source: ", ".join(
            f"{ENV_PREFIX}{name.upper()}={redact(str(getattr(settings, name)))}"
            for name in names
            if name in settings.model_fields_set
        )
        for source, names in TOLD_BY.items()
    }


def why_nothing(given: Given) -> dict[Source, str]:
    """Why a source that can be read may have nothing to watch, where that can be told."""
    run_dir = given.settings.run_dir
    if any(True for _ in registered_ranks(run_dir)):
        return {Source.FLIGHT_RECORDER: "no dump is there: torch writes one when a job hangs"}
    return dict.fromkeys(OF_RANKS, f"no training process is registered in {run_dir}: starts with a job that uses the agent")


def remedies(given: Given) -> dict[Source, str]:
    """For sources that are not here or fail and do not say what to do."""
    found = {
        Source.KERNEL_LOG: "set GOODPUT_KERNEL_LOG to `/dev/kmsg` (a container needs the device), `journal`, or files",
        Source.JOB_LOG: "GOODPUT_JOB_LOGS takes globs of files; in a container the paths are the container's",
    }
    if usable_gpus(given.sys_root):
        found[Source.NVML] = f"install the driver; in a container add the NVIDIA runtime ({RUNNING})"
    return found


def notes(settings: Settings, environ: Mapping[str, str]) -> tuple[str, ...]:
    """What is odd about the settings, though it does not keep the collector from starting."""
    return (*_missing_roots(settings), *_misspelt(environ))


def _missing_roots(settings: Settings) -> Iterable[str]:
    for name in ("sys_root", "proc_root"):
        path = getattr(settings, name)
        if not path.is_dir():
            yield f"{ENV_PREFIX}{name.upper()}: there is no directory {path}; what is read below it will look absent"


def _misspelt(environ: Mapping[str, str]) -> Iterable[str]:
    """Only names that are nearly a setting's: other GOODPUT_ variables are an agent's, a service's or the job's."""
    known = {f"{ENV_PREFIX}{name}".upper() for name in Settings.model_fields}
    for name in sorted(environ):
        bare = name.upper().removesuffix("_FILE")
        if bare.startswith(ENV_PREFIX) and not {bare, name.upper()} & known:
            near = difflib.get_close_matches(bare, known, n=1, cutoff=0.9)
            if near:
                yield f"{name} is no setting: did you mean {near[0]}?"
