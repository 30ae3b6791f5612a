"""What the correlator is told, beyond what every service is (`ServiceSettings`)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from goodput_common.runtime.settings import Port, ServiceSettings
from goodput_correlator.domain.ranking import NAMED_MIN


class Settings(ServiceSettings):
    http_port: Port = 8081
    ingest_slots: int = Field(256, ge=1, le=4096, description="messages of one stream in hand at once; bounds memory")
    evidence_keep_s: float = Field(6 * 3600.0, gt=600, description="evidence that no verdict cites is kept this long")
    measured_keep_s: float = Field(900.0, ge=120, description="batches of mere measurements that no verdict cites")
    evidence_rows_max: int = Field(20_000_000, ge=10_000, description="and at most this many rows of it")
    named_min: float = Field(
        NAMED_MIN, ge=0, le=1, description="confidence from which a culprit is named; below it: undetermined"
    )
    verdicts_keep_s: float = Field(30 * 86400.0, gt=3600, description="resolved verdicts, with what they cite")


def load() -> Settings:
    """From the environment. Raises SettingsError."""
    given: dict[str, Any] = {}
    return Settings(**given)
