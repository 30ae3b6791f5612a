"""Who this process is: job, rank, host and the rest, from arguments, the environment and torch, in that order.

    GOODPUT_JOB, TORCHELASTIC_RUN_ID            the job, when `attach` is not told
    RANK, WORLD_SIZE, LOCAL_RANK                as torchrun sets them; SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID; or torch
    GOODPUT_GENERATION, TORCHELASTIC_RESTART_COUNT   grows with every restart
    GOODPUT_FABRIC, GOODPUT_HOST                default "default" and the host name
    GOODPUT_GPU                                 device index on the host, where torch.cuda cannot tell
    GOODPUT_NATS_URL, GOODPUT_NATS_USER, GOODPUT_NATS_PASSWORD, GOODPUT_RUN_DIR

Read once, at `attach`. Nothing else in the package looks at the environment.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

DEFAULT_NATS_URL = "nats://127.0.0.1:4222"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """`process_start` is the pid's start time in clock ticks since boot: it tells a reused pid from the same process."""

    fabric: str
    job: str
    rank: int
    world_size: int
    host: str
    pid: int
    local_rank: int | None = None
    generation: int = 0
    gpu: int | None = None
    gpu_uuid: str | None = None
    backend: str = ""
    boot_id: str = ""
    process_start: int = 0

    @property
    def source(self) -> str:
        """The `ce-source` of this rank's messages."""
        return f"agent/{self.host}/{self.rank}"

    @property
    def incarnation(self) -> str:
        """Unique to this process, whatever restarts and pid reuse: the stem of its message ids."""
        return f"{self.fabric}/{self.job}/{self.rank}/{self.generation}/{self.boot_id[:8]}.{self.pid}.{self.process_start}"


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    user: str | None = None
    password: str | None = None
    run_dir: Path


def identify(
    environ: Mapping[str, str],
    *,
    job: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    generation: int | None = None,
    torch: Any = None,
) -> Identity:
    """`torch` is the module when it is loaded already, else None: naming a rank must not import it."""
    group = _torch_group(torch)
    gpu, uuid = _gpu(environ, torch)
    return Identity(
        fabric=environ.get("GOODPUT_FABRIC") or "default",
        job=job or environ.get("GOODPUT_JOB") or environ.get("TORCHELASTIC_RUN_ID") or "job",
        rank=_first(rank, group.get("rank"), _int(environ, "RANK"), _int(environ, "SLURM_PROCID"), 0),
        world_size=_first(
            world_size, group.get("world_size"), _int(environ, "WORLD_SIZE"), _int(environ, "SLURM_NTASKS"), 1
        ),
        host=environ.get("GOODPUT_HOST") or socket.gethostname(),
        pid=os.getpid(),
        local_rank=_optional(_int(environ, "LOCAL_RANK"), _int(environ, "SLURM_LOCALID")),
        generation=_first(generation, _int(environ, "GOODPUT_GENERATION"), _int(environ, "TORCHELASTIC_RESTART_COUNT"), 0),
        gpu=gpu,
        gpu_uuid=uuid,
        backend=group.get("backend") or "",
        boot_id=boot_id(),
        process_start=process_start(),
    )


def connection(environ: Mapping[str, str]) -> Connection:
    return Connection(
        url=environ.get("GOODPUT_NATS_URL") or DEFAULT_NATS_URL,
        user=environ.get("GOODPUT_NATS_USER") or None,
        password=environ.get("GOODPUT_NATS_PASSWORD") or None,
        run_dir=run_dir(environ),
    )


def run_dir(environ: Mapping[str, str]) -> Path:
    """GOODPUT_RUN_DIR, else /run/goodput when this user may write there, else the user's own runtime directory."""
    if named := environ.get("GOODPUT_RUN_DIR"):
        return Path(named)
    shared = Path("/run/goodput")
    if os.access(shared if shared.exists() else shared.parent, os.W_OK):
        return shared
    if user := environ.get("XDG_RUNTIME_DIR"):
        return Path(user) / "goodput"
    return Path(tempfile.gettempdir()) / f"goodput-{os.getuid()}"


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_start() -> int:
    """Field 22 of /proc/self/stat; the command in field 2 may hold blanks and parentheses. 0 where /proc is absent."""
    try:
        return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _torch_group(torch: Any) -> dict[str, Any]:
    if torch is None or not hasattr(torch, "distributed"):
        return {}
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized()):
        return {}
    return {"rank": dist.get_rank(), "world_size": dist.get_world_size(), "backend": str(dist.get_backend())}


def _gpu(environ: Mapping[str, str], torch: Any) -> tuple[int | None, str | None]:
    """CUDA_VISIBLE_DEVICES renumbers: the index in the process counts through that list, which may hold UUIDs."""
    if (told := _int(environ, "GOODPUT_GPU")) is not None:
        return told, environ.get("GOODPUT_GPU_UUID") or None
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return None, None
    index = int(torch.cuda.current_device())
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    visible = [each.strip() for each in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each.strip()]
    if index < len(visible):
        index_on_host = int(visible[index]) if visible[index].isdigit() else None
    else:
        index_on_host = index
    return index_on_host, f"GPU-{uuid}" if uuid is not None else None


def _int(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    return int(text) if text.isdigit() else None


def _first(*values: int | None) -> int:
    return next(value for value in values if value is not None)


def _optional(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
