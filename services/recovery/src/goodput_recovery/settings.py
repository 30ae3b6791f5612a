"""What the recovery service is told, beyond what every service is (`ServiceSettings`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from pydantic import Field, ValidationInfo, field_validator

from goodput_common.contracts.verdict import ActionKind
from goodput_common.runtime.settings import Port, ServiceSettings, SettingsError
from goodput_recovery.adapters.dry_run import JOB_LEVEL
from goodput_recovery.domain.policy import InvalidPolicy, Policy, parse


class Settings(ServiceSettings):
    http_port: Port = 8082
    recovery_policy: Path | None = Field(None, description="JSON file that overrides single fields of the policy")
    recovery_settle_s: float | None = Field(None, ge=0, description="overrides the policy's settle_s")
    recovery_spare_nodes: int | None = Field(None, ge=0, description="overrides the policy's spare_nodes")
    recovery_keep_days: float | None = Field(
        None,
        ge=31,
        le=3650,
        description="overrides the policy's keep.decisions_s: ended incidents with their plans and deeds",
    )
    recovery_offers: list[ActionKind] = Field(
        sorted(JOB_LEVEL), description="JSON list of the actions that somebody listening to the dry run carries out"
    )
    recovery_evidence_s: float = Field(1.5, gt=0, le=30, description="how long ranks may take to dump before the action")
    recovery_tick_s: float = Field(0.25, gt=0, le=10)

    @field_validator("recovery_policy")
    @classmethod
    def _readable(cls, value: Path | None, _: ValidationInfo) -> Path | None:
        if value is not None and not value.is_file():
            raise ValueError(f"expected a JSON file, {value} is none")
        return value

    def policy(self) -> Policy:
        """The policy in force. Raises SettingsError naming the field."""
        try:
            policy = parse(self.recovery_policy.read_bytes() if self.recovery_policy else b"{}")
        except (InvalidPolicy, OSError) as error:
            raise SettingsError(f"GOODPUT_RECOVERY_POLICY: {self.recovery_policy}: {error}") from None
        changes: dict[str, Any] = {}
        if self.recovery_settle_s is not None:
            changes["settle_s"] = self.recovery_settle_s
        if self.recovery_spare_nodes is not None:
            changes["spare_nodes"] = self.recovery_spare_nodes
        if self.recovery_keep_days is not None:
            decisions_s = self.recovery_keep_days * 86400.0
            audit_s = max(decisions_s, policy.keep.audit_s)
            changes["keep"] = msgspec.structs.replace(policy.keep, decisions_s=decisions_s, audit_s=audit_s)
        return policy.replaced(**changes)


def load() -> Settings:
    """From the environment. Raises SettingsError."""
    given: dict[str, Any] = {}
    return Settings(**given)
