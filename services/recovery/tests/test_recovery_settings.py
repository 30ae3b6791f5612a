"""What the service is told: policy files, overrides, and errors that name the field."""

from __future__ import annotations

from pathlib import Path

import pytest

from goodput_common.contracts.verdict import ActionKind
from goodput_common.runtime.settings import SettingsError
from goodput_recovery import bootstrap
from goodput_recovery.domain.policy import InvalidPolicy, Policy, Retention, parse
from goodput_recovery.settings import Settings


def test_a_policy_file_overrides_single_fields(tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text('{"settle_s": 9, "threshold": {"swap_node": 0.9}, "budget": {"fabric_actions_max": 1}}')
    policy = Settings(recovery_policy=file, recovery_spare_nodes=4).policy()
    assert (policy.settle_s, policy.spare_nodes, policy.budget.fabric_actions_max) == (9, 4, 1)
    assert policy.threshold_of(ActionKind.SWAP_NODE) == 0.9
    assert policy.threshold_of(ActionKind.RESTART_RANK) == Policy().threshold_of(ActionKind.RESTART_RANK)
    assert policy.digest() != Policy().digest()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "policy file"),
        ('{"setle_s": 1}', "setle_s"),
        ('{"settle_s": "soon"}', "settle_s"),
        ('{"threshold": {"swap_node": 7}}', "threshold.swap_node=7"),
        ('{"threshold": {"swap_the_node": 0.5}}', "swap_the_node"),
        ('{"budget": {"nodes_out_share_max": 0}}', "nodes_out_share_max"),
        ('{"keep": {"decisions_s": 3600}}', "keep.decisions_s"),
        ('{"keep": {"audit_s": 2678400}}', "keep.audit_s"),
        ('{"keep": {"rows_a_round": 0}}', "keep.rows_a_round"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_by_the_field_s_name(text: str, named: str) -> None:
    with pytest.raises(InvalidPolicy, match=named):
        parse(text.encode())


def test_a_missing_policy_file_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="GOODPUT_RECOVERY_POLICY"):
        Settings(recovery_policy=tmp_path / "none.json")


def test_a_broken_policy_file_ends_the_start(tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    file.write_text("[]")
    with pytest.raises(SettingsError, match="GOODPUT_RECOVERY_POLICY"):
        Settings(recovery_policy=file).policy()


def test_the_offers_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOODPUT_RECOVERY_OFFERS", '["isolate_link"]')
    assert Settings().recovery_offers == [ActionKind.ISOLATE_LINK]


def test_the_openapi_document_needs_no_connection() -> None:
    document = bootstrap.openapi()
    assert {"/v1/plans", "/v1/plans/{plan_id}", "/v1/actions", "/v1/policy", "/v1/status"} <= set(document["paths"])
    assert {"Plan", "PlanDetail", "PolicyView", "Status", "Deed"} <= set(document["components"]["schemas"])


def test_how_long_is_kept_can_be_set_in_days_and_the_audit_log_is_kept_no_shorter() -> None:
    assert Settings(recovery_keep_days=None).policy().keep == Retention()
    keep = Settings(recovery_keep_days=500).policy().keep
    assert (keep.decisions_s, keep.audit_s) == (500 * 86400, 500 * 86400)
