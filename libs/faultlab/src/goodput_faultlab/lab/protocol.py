"""What the lab's two halves tell each other: JSON lines over the inner half's stdin and stdout.

The outer half is a library call in any process; the inner half owns the namespaces. When the outer half dies, in whatever
way, the inner one reads the end of its stdin and takes everything down.
"""

from __future__ import annotations

import msgspec

from goodput_faultlab.lab.result import LabResult


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    name: str
    hosts: int
    ranks_per_host: int
    rails: int
    spares: int
    fabric: str


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    scenario: str
    seed: int


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    text: str


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    started_in_s: float


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag="finished"):
    result: LabResult


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    reason: str
    fatal: bool = False  # the lab is going down


Report = Progress | Ready | Finished | Failed
