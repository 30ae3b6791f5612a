"""The publisher's SQL for one outbox, as asyncpg takes it: it runs on a connection outside SQLAlchemy."""

from __future__ import annotations

import sqlalchemy as sa

from goodput_common.store.outbox.table import schema_of


class Statements:
    """One attribute a statement."""

    def __init__(self, table: sa.Table) -> None:
        name = f'"{schema_of(table)}"."{table.name}"'
        self._name = name
        open_ = "sent_at IS NULL AND parked_at IS NULL"
        self.waiting = (
            "SELECT position, message_id, key, type, subject, source, component, traceparent, data, attempts, "
            "coalesce(time, created_at) AS time "
            f"FROM {name} WHERE {open_} AND key <> ALL($1::text[]) ORDER BY position LIMIT $2"
        )
        self.mark_sent = f"UPDATE {name} SET sent_at = now(), last_error = '' WHERE position = ANY($1::bigint[])"
        self.mark_failed = (
            f"UPDATE {name} SET attempts = attempts + 1, last_error = $2, "
            "parked_at = CASE WHEN $3::bool THEN now() END WHERE position = $1"
        )
        self.prune = (
            f"WITH gone AS (DELETE FROM {name} WHERE position IN (SELECT position FROM {name} "
            "WHERE sent_at < now() - $1::interval ORDER BY sent_at LIMIT $2) RETURNING 1) SELECT count(*) FROM gone"
        )
        self.count = (
            f"SELECT count(*) FILTER (WHERE {open_}), count(*) FILTER (WHERE parked_at IS NOT NULL), "
            f"coalesce(extract(epoch FROM now() - min(created_at) FILTER (WHERE {open_})), 0)::float8 "
            f"FROM {name} WHERE sent_at IS NULL"
        )

    def unpark_example(self, position: int) -> str:
        return f"UPDATE {self._name} SET parked_at = NULL, attempts = 0 WHERE position = {position}"
