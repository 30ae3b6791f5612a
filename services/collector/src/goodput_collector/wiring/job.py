"""The ranks of jobs on this host: their processes and what they leave behind."""

from __future__ import annotations

from goodput_collector.adapters.dumps import DumpReader
from goodput_collector.adapters.process import ProcessReader
from goodput_collector.adapters.rank_files import RankFiles
from goodput_collector.adapters.ras import RasReader
from goodput_collector.adapters.registrations import Registrations
from goodput_collector.application.ports import SourceReader
from goodput_collector.domain.ras_progress import Pace
from goodput_collector.settings import listed
from goodput_collector.wiring.given import Given


def readers(given: Given) -> list[SourceReader]:
    settings = given.settings
    ranks = Registrations(settings.run_dir, given.clock).ranks
    files = RankFiles(ranks, host=given.host, proc_root=given.proc_root)
    found: list[SourceReader] = [
        ProcessReader(
            run_dir=settings.run_dir,
            clock=given.clock,
            host=given.host,
            boot_id=given.boot_id,
            proc_root=given.proc_root,
            cgroup_root=given.sys_root / "fs" / "cgroup",
            interval_s=settings.process_interval_s,
        ),
        DumpReader(
            run_dir=settings.run_dir,
            patterns=listed(settings.flight_recorder_files),
            more_patterns=files.dump_patterns if settings.job_logs_of_ranks else tuple,
            fabric=settings.fabric,
            host=given.host,
            clock=given.clock,
            bookmarks=given.bookmarks,
        ),
    ]
    if settings.ras_address:
        found.append(
            RasReader(
                settings.ras_address,
                host=given.host,
                run_dir=settings.run_dir,
                ranks=Registrations(settings.run_dir, given.clock).ranks,
                clock=given.clock,
                pace=Pace(every_s=settings.ras_interval_s, stalled_s=min(8.0, settings.ras_interval_s)),
            )
        )
    return found
