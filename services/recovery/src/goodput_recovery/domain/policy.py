"""What the operators allow, as one value: thresholds, times, budgets and prices. Read at start, shown at `/v1/policy`.

Every field has a default that suits a small cluster; a JSON file overrides single fields (`parse`). Nothing here is learned
or changed at run time, so that a decision can be repeated from the audit log, which keeps the policy's digest.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from goodput_common.contracts.verdict import ActionKind

_DAY_S = 24 * 3600.0
# Longer than the bus keeps a verdict, and than the inbox remembers it: one that is read again must find its incident.
KEEP_S_MIN = 31 * _DAY_S
_THRESHOLD: dict[ActionKind, float] = {
    ActionKind.REINIT_COMMUNICATORS: 0.5,
    ActionKind.RESTART_RANK: 0.5,
    ActionKind.EXCLUDE_NIC: 0.6,
    ActionKind.ISOLATE_LINK: 0.7,
    ActionKind.RESET_GPU: 0.6,
    ActionKind.SWAP_NODE: 0.6,
    ActionKind.CORDON_AT_CHECKPOINT: 0.6,
    ActionKind.DRAIN_AND_RESUME: 0.6,
    ActionKind.RESTART_JOB: 0.6,
}


class InvalidPolicy(ValueError):
    """The policy file does not say what a policy can say; the message names the field."""


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much may be done. One action at a time on a job is not a setting: two actions on one job are never independent."""

    fabric_actions_max: int = 20  # started within the window
    fabric_window_s: float = 3600.0
    fabric_concurrent_max: int = 8
    job_actions_max: int = 6
    job_window_s: float = 3600.0
    nodes_out_share_max: float = 0.1  # of the hosts heard of within the windows here; one node is always allowed
    nodes_out_window_s: float = 24 * 3600.0
    breaker_incidents: int = 20  # opened within the window: more means that the monitor or the fabric is sick
    breaker_window_s: float = 60.0
    breaker_quiet_s: float = 120.0  # closes by itself after so long below the limit
    wait_s_max: float = 300.0  # a plan waits so long for room, then it is refused


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What lost time is worth, in seconds that a whole job stands still or works twice. `downtime_scale` fits the ladder's
    typical downtimes to this site; the time allowed for verification grows and shrinks with it."""

    downtime_scale: float = 1.0

    peer_interval_s: float = 10.0  # between in-memory copies; half of it is lost on average
    checkpoint_interval_s: float = 1800.0
    repair_s: float = 4 * 3600.0  # a node without a replacement is away for so long
    person_s: float = 1800.0  # until a person has found and fixed it
    gpus_per_host: int = 8


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long what was decided is kept once it has ended, and how much is let go in one round of pruning.

    An incident goes whole: verdicts, plans, deeds and commands, and only after nothing happened to it for `decisions_s`.
    What is open is never let go.
    """

    decisions_s: float = 90 * _DAY_S  # also of the places of ranks whose job is silent
    audit_s: float = 365 * _DAY_S
    incidents_a_round: int = 100
    rows_a_round: int = 5000


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`threshold`: the confidence from which an action needs no person; below it the plan awaits approval. Below
    `act_floor` no action is proposed at all. `always_ask`: actions that need a person whatever the confidence."""

    threshold: dict[ActionKind, float] = msgspec.field(default_factory=lambda: dict(_THRESHOLD))
    act_floor: float = 0.3
    always_ask: tuple[ActionKind, ...] = ()
    settle_s: float = 2.0  # a plan is held so long, so that a quick revision of its verdict wins
    link_wait_s: float = 5.0  # counted from the first evidence: how long a link that is down is given to come back
    approval_within_s: float = 1800.0
    observe_s: float = 60.0  # a job that does not move again within this goes to a person
    person_within_s: float = 24 * 3600.0
    verify_within_s: float = 120.0  # on top of the step's own downtime
    verify_hold_s: float = 3.0
    verify_watch_s_min: float = 20.0  # nothing is called failed before it was really watched for so long
    spare_nodes: int | None = 1  # spares that the operator vouches for, each used once a day; None is unknown
    links_redundant: bool | None = None  # whether a link may be taken out without asking the topology; None is unknown
    actions_per_incident_max: int = 3
    plans_per_incident_max: int = 20
    budget: Budget = msgspec.field(default_factory=Budget)
    keep: Retention = msgspec.field(default_factory=Retention)
    prices: Prices = msgspec.field(default_factory=Prices)

    def threshold_of(self, kind: ActionKind) -> float:
        """An action that the policy does not mention always asks a person."""
        return self.threshold.get(kind, 1.01)

    def replaced(self, **changes: Any) -> Policy:
        """The same policy with some fields changed."""
        return msgspec.structs.replace(self, **changes)

    def digest(self) -> str:
        """Names this policy in the audit log."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:12]


def parse(document: bytes) -> Policy:
    """A policy from JSON; what is left out keeps its default (`threshold` is merged per action). Raises InvalidPolicy."""
    try:
        policy = msgspec.json.decode(document, type=Policy)
    except msgspec.MsgspecError as error:
        raise InvalidPolicy(f"policy file: {error}") from error
    merged = {**Policy().threshold, **policy.threshold}
    if bad := [f"threshold.{kind}={value}" for kind, value in merged.items() if not 0.0 <= value <= 1.01]:
        raise InvalidPolicy(f"policy file: {', '.join(bad)} is no probability (0..1; 1.01 means always ask)")
    if not 0.0 < policy.budget.nodes_out_share_max <= 1.0:
        raise InvalidPolicy("policy file: budget.nodes_out_share_max must be above 0 and at most 1")
    keep = policy.keep
    if keep.decisions_s < KEEP_S_MIN:
        raise InvalidPolicy(
            f"policy file: keep.decisions_s must be {KEEP_S_MIN:.0f} or more (verdicts may come again so long)"
        )
    if keep.audit_s < keep.decisions_s:
        raise InvalidPolicy("policy file: keep.audit_s must not be below keep.decisions_s")
    if min(keep.incidents_a_round, keep.rows_a_round) < 1:
        raise InvalidPolicy("policy file: keep.incidents_a_round and keep.rows_a_round must be 1 or more")
    return msgspec.structs.replace(policy, threshold=merged)
