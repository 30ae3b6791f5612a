"""A fabric as a JSON file: for people, for version control, for tools without a bus.

    {"format": "goodput.topology/1", "fabric": "eu-1", "components": [{"id", "kind", "attrs"}…], "edges": [{"a", "b",
    "relation"}…]}

Records are sorted, one a line, so that a diff shows what changed. The format number grows only when old files can no
longer be read as they are.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from goodput_common.contracts.topology import ComponentRecord, EdgeRecord
from goodput_topology.build import InvalidFabric
from goodput_topology.graph import Fabric

FORMAT = "goodput.topology/1"
FILE_BYTES_MAX = 1 << 30


class _File(msgspec.Struct, kw_only=True):
    format: str
    fabric: str
    components: list[ComponentRecord]
    edges: list[EdgeRecord]


class UnreadableTopology(ValueError):
    """The file is not a fabric; the text names the file and, where one is wrong, the field."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


def dumps(fabric: Fabric) -> bytes:
    encode = msgspec.json.Encoder(order="deterministic").encode
    components = sorted((r for r in fabric.components.values() if fabric.ends_of(r.id) is None), key=lambda r: r.id)
    edges = sorted(fabric.edges, key=lambda e: (e.relation.value, e.a, e.b))
    head = b'{"format":' + encode(FORMAT) + b',"fabric":' + encode(fabric.name)
    rows = b",\n".join(encode(each) for each in components)
    return head + b',\n"components":[\n' + rows + b'\n],\n"edges":[\n' + b",\n".join(encode(e) for e in edges) + b"\n]}\n"


def save(fabric: Fabric, path: Path) -> None:
    """Write beside, then rename: a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(dumps(fabric))
    temporary.replace(path)


def load(path: Path) -> Fabric:
    """Raises UnreadableTopology (absent, not JSON, a wrong field, records that do not fit together)."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UnreadableTopology(path, f"larger than {FILE_BYTES_MAX >> 20} MiB, which no fabric is; give another file")
        text = path.read_bytes()
    except OSError as error:
        raise UnreadableTopology(path, f"cannot be read: {error.strerror or error}") from error
    try:
        read = msgspec.json.decode(text, type=_File)
    except msgspec.ValidationError as error:
        raise UnreadableTopology(path, f"not a fabric: {error}") from error
    except msgspec.DecodeError as error:
        raise UnreadableTopology(path, f"not JSON: {error}") from error
    if read.format != FORMAT:
        raise UnreadableTopology(path, f"field format is {read.format!r}; this program reads {FORMAT!r}")
    try:
        return Fabric.build(read.fabric, read.components, read.edges)
    except InvalidFabric as error:
        raise UnreadableTopology(path, str(error)) from error
