"""`goodput replay`: the diagnosis again, from a recording, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from goodput_cli.output import Failure, out, print_json, progress
from goodput_cli.verdict_view import clock, headline, render
from goodput_common.bus.recording import RecordingError, read_records
from goodput_common.contracts.topology import TopologySnapshot
from goodput_common.contracts.verdict import Verdict
from goodput_correlator.domain.case import fabric_of
from goodput_correlator.domain.replay import replay
from goodput_topology import jsonfile
from goodput_topology.graph import Fabric


def command(
    recording: Annotated[Path, typer.Argument(help="JSON Lines, as `goodput demo --keep` or `goodput simulate` write.")],
    topology: Annotated[Path | None, typer.Option(help="Fabric as JSON, where the recording holds no topology.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Every version of every verdict, as JSON.")] = False,
) -> None:
    """Runs the correlator's diagnosis on a recording. The same recording gives the same bytes, in any order of delivery."""
    try:
        verdicts = replay_file(recording, topology, quiet=as_json)
    except (RecordingError, jsonfile.UnreadableTopology, OSError) as error:
        raise Failure(str(error)) from error
    if as_json:
        print_json({"verdicts": verdicts})
        return
    for verdict in verdicts:
        out.print(f"{clock(verdict.published_at)}  {verdict.state} v{verdict.version}  {headline(verdict)}")
    newest: dict[str, Verdict] = {verdict.id: verdict for verdict in verdicts}
    for verdict in newest.values():
        out.print(render(verdict))
    if not verdicts:
        out.print("no verdicts: nothing in this recording needs one")


def replay_file(recording: Path, topology: Path | None = None, *, quiet: bool = False) -> list[Verdict]:
    """Every verdict version that `recording` leads to. The fabric comes from `topology`, else from the recording's own
    snapshots; it is read first, so that the place of a snapshot in the log makes no difference."""
    fabric = jsonfile.load(topology) if topology else recorded_fabric(recording)
    with progress(f"replaying {recording.name}", quiet=quiet):
        return replay(read_records(recording), fabric)


def recorded_fabric(recording: Path) -> Fabric:
    """The fabric that a recording speaks of: its topology snapshots put together, or an empty one of the right name."""
    name: str | None = None
    snapshots: dict[bytes, TopologySnapshot] = {}
    for message in read_records(recording):
        name = name or fabric_of(message)
        if isinstance(message.data, TopologySnapshot):
            snapshots[msgspec.json.encode(message.data)] = message.data
    if name is None:
        raise Failure(f"{recording} holds no message with a fabric: it cannot be replayed")
    return Fabric.from_snapshots(name, snapshots.values()) if snapshots else Fabric.empty(name)
