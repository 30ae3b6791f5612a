"""Where agents and the collector of one host meet: the run directory.

Both sides must come to the same answer without talking to each other: `GOODPUT_RUN_DIR` where it is set, else `/run/goodput`
where this user may write, else the user's own runtime directory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from goodput_common.contracts.subjects import token

SYSTEM_RUN_DIR = Path("/run/goodput")


def default_run_dir(environ: Mapping[str, str] | None = None) -> Path:
    """The directory's path; it is not created here."""
    env = os.environ if environ is None else environ
    if given := env.get("GOODPUT_RUN_DIR"):
        return Path(given)
    nearest = SYSTEM_RUN_DIR if SYSTEM_RUN_DIR.is_dir() else SYSTEM_RUN_DIR.parent
    if os.access(nearest, os.W_OK | os.X_OK):
        return SYSTEM_RUN_DIR
    if runtime := env.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "goodput"
    return Path(tempfile.gettempdir()) / f"goodput-{os.getuid()}"


def reports_socket(run_dir: Path, host: str) -> Path:
    """Where the collector of `host` takes the reports of ranks: several lab hosts may share a machine.

    A stream of lines each way. An agent writes its reports (`RankProgress` as JSON); the collector answers the `seq` of each
    once the bus has stored it, and nothing for one that it could not send on."""
    return run_dir / "collectors" / f"{token(host)}.sock"
