"""A verdict as a person reads it: who, why, how sure, who is only a victim, what to do."""

from __future__ import annotations

from datetime import datetime

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from goodput_common.contracts.verdict import Culprit, FaultClass, Verdict

EVIDENCE_SHOWN = 8
EXPLAINED_SHOWN = 6
MEANING: dict[FaultClass, str] = {
    FaultClass.GPU_OFF_BUS: "a GPU has fallen off the bus",
    FaultClass.GPU_MEMORY: "a GPU's memory has failed",
    FaultClass.NVLINK: "an NVLink has failed",
    FaultClass.LINK_FLAP: "a network link is down or flapping",
    FaultClass.PFC_STORM: "a port pauses the network",
    FaultClass.STRAGGLER: "one component slows everybody down",
    FaultClass.GPU_DRIVER: "the GPU's driver or firmware does not answer",
    FaultClass.PCIE: "a PCIe connection has failed",
    FaultClass.NIC_HANG: "a network adapter does not answer",
    FaultClass.SWITCH_FAULT: "a switch has failed",
    FaultClass.HOST_DOWN: "a host is gone",
    FaultClass.PROCESS_DEAD: "a rank's process is gone",
    FaultClass.PROCESS_STALL: "a rank's process is alive but stands still",
    FaultClass.COLLECTIVE_DESYNC: "a rank issued other collectives than its peers",
    FaultClass.STORAGE_STALL: "storage does not answer",
    FaultClass.NO_HARDWARE_FAULT: "no hardware fault",
    FaultClass.UNDETERMINED: "cannot tell",
}


def clock(at: datetime) -> str:
    return at.strftime("%H:%M:%S.%f")[:-4]


def ranks_text(ranks: tuple[int, ...]) -> str:
    """`ranks 8-15`, `rank 3`, `ranks 1, 5, 9`."""
    if not ranks:
        return ""
    runs: list[tuple[int, int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], rank)
        else:
            runs.append((rank, rank))
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    shown = ", ".join(parts[:8]) + (f" and {len(parts) - 8} more" if len(parts) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def culprit_text(culprit: Culprit) -> str:
    ranks = ranks_text(culprit.ranks)
    return f"{culprit.component or 'nobody'}" + (f" ({ranks})" if ranks else "")


def headline(verdict: Verdict) -> str:
    """One line, as in a list."""
    culprits = verdict.culprits or (verdict.culprit,)
    named = " and ".join(culprit_text(each) for each in culprits)
    return f"{verdict.fault_class}: {named}, confidence {verdict.confidence:.2f}"


def render(verdict: Verdict) -> RenderableType:
    """The whole verdict in a panel."""
    body: list[RenderableType] = []
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column()
    for number, culprit in enumerate(verdict.culprits or (verdict.culprit,)):
        facts.add_row("culprit" if number == 0 else "and", Text(culprit_text(culprit), style="bold red"))
    facts.add_row("what", f"{verdict.fault_class}: {MEANING[verdict.fault_class]}")
    facts.add_row("confidence", f"{verdict.confidence:.2f}")
    affected = ranks_text(verdict.affected.ranks)
    facts.add_row("affected", affected + (f" of {', '.join(verdict.affected.jobs)}" if verdict.affected.jobs else "") or "-")
    facts.add_row("do", f"{verdict.action.kind} {verdict.action.target or ''}: {verdict.action.reason}")
    for other in verdict.alternatives[:3]:
        facts.add_row("or else", f"{other.component or 'nobody'}, {other.fault_class}, {other.confidence:.2f}")
    for source in verdict.unknown[:3]:
        facts.add_row("not seen", source)
    body.append(facts)
    body.append(Text("\nevidence", style="bold"))
    evidence = Table.grid(padding=(0, 2))
    for each in sorted(verdict.evidence, key=lambda e: -e.weight)[:EVIDENCE_SHOWN]:
        evidence.add_row(clock(each.observed_at), Text(each.excerpt, style="cyan"), Text(each.why))
    body.append(evidence)
    if len(verdict.evidence) > EVIDENCE_SHOWN:
        body.append(Text(f"… and {len(verdict.evidence) - EVIDENCE_SHOWN} more (--json shows all)", style="dim"))
    if verdict.explained:
        body.append(Text("\nfollows from it, and is nobody else's fault", style="bold"))
        explained = Table.grid(padding=(0, 2))
        for symptom in verdict.explained[:EXPLAINED_SHOWN]:
            explained.add_row(symptom.component or "", symptom.symptom, Text(symptom.because, style="dim"))
        body.append(explained)
        if len(verdict.explained) > EXPLAINED_SHOWN:
            body.append(Text(f"… and {len(verdict.explained) - EXPLAINED_SHOWN} more", style="dim"))
    title = f"verdict {verdict.id} v{verdict.version} · {verdict.state}"
    return Panel(Group(*body), title=title, border_style="red" if verdict.culprit.component else "yellow")
