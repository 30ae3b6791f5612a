"""Verdicts made by hand."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from goodput_common.contracts.ids import host_of, kind_of
from goodput_common.contracts.verdict import (
    Action,
    ActionKind,
    Affected,
    Culprit,
    Evidence,
    FaultClass,
    Verdict,
    VerdictState,
)

T0 = datetime(2026, 3, 2, 8, tzinfo=UTC)
GPU = "gpu:h3/4"


def evidence(
    id: str, component: str, after_s: float, excerpt: str, why: str = "what it means", weight: float = 0.5
) -> Evidence:
    at = T0 + timedelta(seconds=after_s)
    return Evidence(event_id=id, component=component, excerpt=excerpt, observed_at=at, why=why, weight=weight)


def verdict(version: int = 1, after_s: float = 3.0, component: str | None = GPU, **changes: Any) -> Verdict:
    """A GPU off the bus under rank 28 of job `train`; `changes` are fields of the verdict."""
    blamed = (
        Culprit(component=component, kind=kind_of(component), host=host_of(component), ranks=(28,)) if component else None
    )
    nobody = Culprit(component=None, kind=None, host=None)
    fields: dict[str, Any] = {
        "id": "0123456789abcdef01234567",
        "version": version,
        "incident": "incident-1",
        "fabric": "f",
        "job": "train",
        "state": VerdictState.OPEN if version == 1 else VerdictState.REVISED,
        "fault_class": FaultClass.GPU_OFF_BUS if blamed else FaultClass.UNDETERMINED,
        "culprit": blamed or nobody,
        "culprits": (blamed,) if blamed else (),
        "confidence": 0.93,
        "alternatives": (),
        "evidence": (
            evidence("e-xid", component, 1.0, "Xid 79, GPU has fallen off the bus", "the driver lost it", 0.93),
            evidence("e-pci", component, 1.5, "pcieport: AER error", "its PCIe link failed", 0.4),
        )
        if component
        else (),
        "explained": (),
        "affected": Affected(jobs=("train",), ranks=(0, 28), hosts=("h0", "h3")),
        "action": Action(kind=ActionKind.SWAP_NODE, target=component, reason="it is gone until its machine is reset"),
        "first_evidence_at": T0,
        "detected_at": T0 + timedelta(seconds=after_s),
        "published_at": T0 + timedelta(seconds=after_s),
        "diagnosed_by": "gpu_off_bus/1",
    }
    return Verdict(**(fields | changes))


@pytest.fixture
def make_verdict() -> Callable[..., Verdict]:
    return verdict


@pytest.fixture
def make_evidence() -> Callable[..., Evidence]:
    return evidence
