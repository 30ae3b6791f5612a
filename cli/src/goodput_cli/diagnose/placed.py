"""A report with its host and its time."""

from __future__ import annotations

from typing import NamedTuple

from goodput_cli.diagnose.readings import Taken
from goodput_cli.diagnose.reports import Report


class Placed(NamedTuple):
    """`host_by` says in words how the host is known, "" where it is not."""

    report: Report
    host: str
    host_by: str
    taken: Taken
