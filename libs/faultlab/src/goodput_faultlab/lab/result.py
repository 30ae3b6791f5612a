"""What a lab run says about itself; its JSON form is what `goodput lab run --json` prints."""

from __future__ import annotations

import msgspec

from goodput_common.contracts.recovery import RecoveryUpdate
from goodput_common.contracts.verdict import Verdict
from goodput_faultlab.ledger import LedgerEntry


class LabResult(msgspec.Struct, frozen=True, kw_only=True):
    """`verdicts` holds every version of every verdict on the job, `recovery` every announcement.

    `detect_s` runs from the injection to the publication of the first verdict that is right, `recover_s` from the injection
    until all ranks are past the step at which the job stood; None where it did not happen. `why` explains `correct`.
    """

    scenario: str
    seed: int
    ledger: tuple[LedgerEntry, ...]
    verdicts: tuple[Verdict, ...]
    recovery: tuple[RecoveryUpdate, ...]
    correct: bool
    detect_s: float | None
    recover_s: float | None
    why: str
    job: str
    recording: str = ""  # the run's messages, for `goodput replay`
    logs: str = ""
    notes: tuple[str, ...] = ()  # what the launcher did, and what was out of the ordinary

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)
