"""What `goodput diagnose` prints: a line for each file, what stands out, what would tell more, and the verdicts."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from goodput_cli.diagnose.files import File
from goodput_cli.diagnose.gather import Gathered
from goodput_cli.diagnose.notable import Notable
from goodput_cli.output import err, out
from goodput_cli.verdict_view import render
from goodput_collector.domain.pasted import Unread
from goodput_common.contracts.ids import ComponentKind
from goodput_common.contracts.verdict import Verdict

NOTABLE_SHOWN = 20
FILES_SHOWN = 60


def show(gathered: Gathered, verdicts: list[Verdict], standing_out: list[Notable], wanted: list[str]) -> None:
    for file in gathered.files[:FILES_SHOWN]:
        out.print(Text(file_line(file), style="dim" if file.kinds else "yellow"))
        for what, unread in (("not understood", file.not_understood), ("of no fault", file.passed_over)):
            if unread.count and (file.kinds or unread is file.not_understood):
                out.print(Text(f"    {what}: {_lines(unread)}, first: {unread.first}", style="dim"))
    if len(gathered.files) > FILES_SHOWN:
        out.print(f"… and {len(gathered.files) - FILES_SHOWN} more files (--json shows all)", style="dim")
    for warning in gathered.warnings:
        err.print(f"warning: {warning}", style="yellow", markup=False)
    for verdict in verdicts:
        out.print(render(verdict))
    if not verdicts and any(file.kinds for file in gathered.files):
        out.print(_without_verdict(gathered, standing_out), style="bold")
    _listed("stands out, without being a verdict", [f"{each.component}: {each.what}" for each in standing_out])
    _listed("to know", gathered.notes)
    _listed("would tell more", wanted)


def _without_verdict(gathered: Gathered, standing_out: list[Notable]) -> str:
    if standing_out:
        return "no fault can be named from what was read"
    if gathered.facts or any(file.passed_over.count for file in gathered.files):
        return "no fault found in what was read"
    return "nothing in what was read speaks of a fault or of its absence"


def _listed(title: str, lines: list[str]) -> None:
    if not lines:
        return
    out.print(Text(f"\n{title}", style="bold"))
    for line in lines[:NOTABLE_SHOWN]:
        out.print(Text(f"  {line}"))
    if len(lines) > NOTABLE_SHOWN:
        out.print(Text(f"  … and {len(lines) - NOTABLE_SHOWN} more (--json shows all)", style="dim"))


def file_line(file: File) -> str:
    """`case/ibstat.txt: ibstat, host node7 (the folder's name), 8 facts`."""
    if file.why:
        return f"{file.item.name}: not recognised: {file.why}"
    host = f", host {file.host} ({file.host_by})" if file.host else ""
    if not file.host and len(file.named) > 1:
        host = f", hosts {', '.join(sorted(file.named)[:4])}{' …' if len(file.named) > 4 else ''}"
    drawn = f", {_many(file.drawn, 'part')} of the fabric" if file.drawn else ""
    return f"{file.item.name}: {', '.join(file.kinds)}{host}, {_many(file.facts, 'fact')}{drawn}"


def _lines(unread: Unread) -> str:
    return _many(unread.count, "line")


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def document(gathered: Gathered, verdicts: list[Verdict], standing_out: list[Notable], wanted: list[str]) -> dict[str, Any]:
    """The same as JSON."""
    fabric = gathered.fabric
    return {
        "verdicts": verdicts,
        "unrecognised": [{"path": path, "why": why} for path, why in gathered.unrecognised],
        "warnings": gathered.warnings,
        "files": [_file(file) for file in gathered.files],
        "notable": [{"component": each.component, "what": each.what, "path": each.origin} for each in standing_out],
        "notes": gathered.notes,
        "needs": wanted,
        "topology": {
            "components": len(fabric),
            "hosts": list(fabric.hosts()),
            "links": sum(1 for _ in fabric.of_kind(ComponentKind.LINK)),
        },
        "ranks": {"by": gathered.ranks_by, "hosts": {str(each.rank): each.host for each in gathered.ranks}},
    }


def _file(file: File) -> dict[str, Any]:
    return {
        "path": file.item.name,
        "recognised": file.kinds,
        "why": file.why,
        "host": file.host,
        "host_by": file.host_by,
        "hosts": sorted(file.named),
        "facts": file.facts,
        "parts_of_the_fabric": file.drawn,
        "lines": file.lines,
        "not_understood": {"count": file.not_understood.count, "first": file.not_understood.first},
        "passed_over": {"count": file.passed_over.count, "first": file.passed_over.first},
    }
