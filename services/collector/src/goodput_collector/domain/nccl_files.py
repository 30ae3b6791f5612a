"""Where NCCL and torch write, by the environment of a training process: logs, and the flight recorder's dumps.

NCCL_DEBUG_FILE=/logs/nccl.%h.%p.log           %h is the host, %p the process
TORCH_FR_DUMP_TEMP_FILE=/dumps/trace_          the rank's number follows
"""

from __future__ import annotations

DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
DUMP_DEFAULTS = ("/tmp/nccl_trace_rank_", "{home}/.cache/torch/comm_lib_trace_rank_")
_ENVIRON_BYTES_MAX = 256 * 1024


def parse_environ(data: bytes) -> dict[str, str]:
    """`/proc/<pid>/environ`: NAME=value, each ended by a zero byte."""
    found = {}
    for entry in data[:_ENVIRON_BYTES_MAX].split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals:
            found[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return found


def log_of(environ: dict[str, str], *, host: str, pid: int) -> str:
    """The file that NCCL logs to; "" where it is standard output, or a place that holds a name we cannot make."""
    path = environ.get("NCCL_DEBUG_FILE", "")
    if not path.startswith("/") or path.startswith("/dev/"):
        return ""
    path = path.replace("%%", "\0").replace("%h", host).replace("%p", str(pid))
    return "" if "%" in path else path.replace("\0", "%")


def dump_prefixes(environ: dict[str, str], *, nccl: bool) -> list[str]:
    """What the names of its flight-recorder files begin with; torch's own choice only where it records NCCL."""
    given = [environ[name] for name in DUMP_VARIABLES if environ.get(name, "").startswith("/")]
    home = environ.get("HOME", "")
    if given or not nccl:
        return given
    return [each.format(home=home) for each in DUMP_DEFAULTS if home.startswith("/") or "{home}" not in each]
