"""Compiled modules, kept for the processes that are started here.

A Python process that finds no compiled modules compiles all that it imports, which takes three times as long as the rest of
its start. With `PYTHONDONTWRITEBYTECODE`, or sources beside which this user may not write, each process would do so anew.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SOURCES = Path(__file__).parent


def kept(environ: Mapping[str, str], sources: Path = SOURCES) -> dict[str, str]:
    """`environ`, with a cache of the user's own for compiled modules where none would be kept beside the `sources`.

    A user without a home gets none: what is run must lie where nobody else can write.
    """
    environment = dict(environ)
    unwanted = environment.pop("PYTHONDONTWRITEBYTECODE", "")
    beside = (sources / "__pycache__").is_dir() or os.access(sources, os.W_OK)
    cache = environment.get("XDG_CACHE_HOME") or (f"{home}/.cache" if (home := environment.get("HOME")) else "")
    if cache and (unwanted or not beside):
        environment.setdefault("PYTHONPYCACHEPREFIX", f"{cache}/goodput/pycache")
    elif unwanted:
        environment["PYTHONDONTWRITEBYTECODE"] = unwanted
    return environment
