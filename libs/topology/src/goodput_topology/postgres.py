"""A fabric in Postgres: what each source said last, replaced as a whole in one transaction.

The tables live in the schema of whichever service owns them (`topology_tables(metadata)` follows the metadata's schema); the
caller opens the transaction, so a topology and what was derived from it are stored together or not at all.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from goodput_common.contracts.ids import ComponentKind
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation, TopologySnapshot
from goodput_topology.graph import Fabric

ROWS_A_STATEMENT = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyTables:
    """`source` has one row for each (fabric, source) with the version stored; the others hold that version's records."""

    source: sa.Table
    component: sa.Table
    edge: sa.Table


def topology_tables(metadata: sa.MetaData) -> TopologyTables:
    """Declare the three tables on `metadata`, in its schema."""
    source = sa.Table(
        "topology_source",
        metadata,
        sa.Column("fabric", sa.Text, primary_key=True),
        sa.Column("source", sa.Text, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
    )
    component = sa.Table(
        "topology_component",
        metadata,
        sa.Column("fabric", sa.Text, primary_key=True),
        sa.Column("source", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("attrs", JSONB, nullable=False),
    )
    edge = sa.Table(
        "topology_edge",
        metadata,
        sa.Column("fabric", sa.Text, primary_key=True),
        sa.Column("source", sa.Text, primary_key=True),
        sa.Column("a", sa.Text, primary_key=True),
        sa.Column("b", sa.Text, primary_key=True),
        sa.Column("relation", sa.Text, primary_key=True),
        sa.Column("attrs", JSONB, nullable=False),
    )
    return TopologyTables(source=source, component=component, edge=edge)


class IncompleteSnapshot(ValueError):
    """Not all parts of one version of one source: collect them with `snapshot.Assembly` first."""


async def save(connection: AsyncConnection, tables: TopologyTables, parts: Sequence[TopologySnapshot]) -> bool:
    """Replace what the source said before by a whole snapshot. False, and nothing done, when a version as new is stored
    already.

    Two writers of the same source wait for each other on its row. Raises IncompleteSnapshot.
    """
    identities = {(part.fabric, part.source, part.version, part.parts) for part in parts}
    if len(identities) != 1 or sorted(part.part for part in parts) != list(range(1, parts[0].parts + 1)):
        raise IncompleteSnapshot(
            f"need all parts of one version of one source, got {[(p.source, p.version, p.part) for p in parts]}"
        )
    fabric, source, version, _ = identities.pop()
    stored = insert(tables.source).values(fabric=fabric, source=source, version=version, at=parts[0].at)
    newer = stored.on_conflict_do_update(
        index_elements=["fabric", "source"],
        set_={"version": stored.excluded.version, "at": stored.excluded.at},
        where=tables.source.c.version < stored.excluded.version,
    ).returning(tables.source.c.version)
    if (await connection.execute(newer)).first() is None:
        return False
    for table in (tables.component, tables.edge):
        await connection.execute(sa.delete(table).where(table.c.fabric == fabric, table.c.source == source))
    of = {"fabric": fabric, "source": source}
    await _insert(
        connection,
        tables.component,
        [{**of, "id": r.id, "kind": r.kind.value, "attrs": r.attrs} for part in parts for r in part.components],
    )
    await _insert(
        connection,
        tables.edge,
        [{**of, "a": e.a, "b": e.b, "relation": e.relation.value, "attrs": e.attrs} for part in parts for e in part.edges],
    )
    return True


async def _insert(connection: AsyncConnection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    for start in range(0, len(rows), ROWS_A_STATEMENT):
        statement = insert(table).on_conflict_do_nothing()  # a record said twice by one source is one record
        await connection.execute(statement, rows[start : start + ROWS_A_STATEMENT])


async def load(connection: AsyncConnection, tables: TopologyTables, fabric: str) -> Fabric:
    """All that every source last said of `fabric`, joined; empty when nothing was said. Raises build.InvalidFabric."""
    component, edge = tables.component, tables.edge
    components: dict[str, list[ComponentRecord]] = defaultdict(list)
    edges: dict[str, list[EdgeRecord]] = defaultdict(list)
    asked = sa.select(component.c.source, component.c.id, component.c.kind, component.c.attrs)
    for source, id_, kind, attrs in await connection.execute(
        asked.where(component.c.fabric == fabric).order_by(component.c.id)
    ):
        components[source].append(ComponentRecord(id=id_, kind=ComponentKind(kind), attrs=attrs))
    asked_edges = sa.select(edge.c.source, edge.c.a, edge.c.b, edge.c.relation, edge.c.attrs).where(edge.c.fabric == fabric)
    for source, a, b, relation, attrs in await connection.execute(asked_edges.order_by(edge.c.a, edge.c.b, edge.c.relation)):
        edges[source].append(EdgeRecord(a=a, b=b, relation=Relation(relation), attrs=attrs))
    sources = sa.select(tables.source).where(tables.source.c.fabric == fabric).order_by(tables.source.c.source)
    snapshots = [
        TopologySnapshot(
            fabric=fabric, source=row.source, version=row.version, at=row.at,
            components=tuple(components[row.source]), edges=tuple(edges[row.source]),
        )
        for row in await connection.execute(sources)
    ]  # fmt: skip
    # seconds of work for a thousand sources: not on the loop, where leases are renewed
    return await asyncio.to_thread(Fabric.from_snapshots, fabric, snapshots)
