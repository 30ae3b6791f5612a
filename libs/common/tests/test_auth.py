"""Who may call, and what a tenant sees."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from fastapi.security import HTTPAuthorizationCredentials
from hypothesis import given
from hypothesis import strategies as st

from goodput_common.http.auth import Auth, Principal, Role
from goodput_common.http.problem import Problem
from goodput_common.runtime.lifecycle import StartError

TOKEN = "a-token-of-some-length"
DIGEST = hashlib.sha256(TOKEN.encode()).hexdigest()


def _auth(entries: dict[str, Any]) -> Auth:
    return Auth.from_json(json.dumps(entries))


def _bearer(token: str) -> HTTPAuthorizationCredentials:
    return HTTPAuthorizationCredentials(scheme="Bearer", credentials=token)


def test_a_token_is_known_in_clear_and_by_its_hash() -> None:
    for key in (TOKEN, f"sha256:{DIGEST}", f"SHA256:{DIGEST.upper()}"):
        principal = _auth({key: {"role": "viewer", "name": "dash"}}).principal_of(TOKEN)
        assert principal == Principal("dash", Role.VIEWER, None)


def test_the_hash_itself_opens_nothing() -> None:
    auth = _auth({f"sha256:{DIGEST}": {"role": "admin"}})
    assert auth.principal_of(f"sha256:{DIGEST}") is None
    assert auth.principal_of(DIGEST) is None


@given(st.text(max_size=200))
def test_no_other_text_is_a_token(text: str) -> None:
    auth = _auth({TOKEN: {"role": "admin"}})
    assert (auth.principal_of(text) is not None) == (text == TOKEN)


def test_an_oversized_token_is_refused_without_hashing_it() -> None:
    assert _auth({TOKEN: {"role": "admin"}}).principal_of("x" * 1_000_000) is None


def test_without_tokens_nobody_gets_in_and_the_refusal_says_why() -> None:
    with pytest.raises(Problem) as raised:
        Auth.from_json("").authenticate(None)
    assert raised.value.status_code == 401
    assert "GOODPUT_API_TOKENS" in raised.value.detail
    with pytest.raises(Problem):
        Auth.from_json("{}").authenticate(_bearer("anything-at-all-here"))


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({TOKEN: {"role": "king", "name": "x"}}, "Invalid enum value"),
        ({TOKEN: {"name": "x"}}, "missing required field `role`"),
        ({TOKEN: {"role": "viewer", "rolle": 1}}, "unknown field `rolle`"),
        ({"short": {"role": "viewer", "name": "dash"}}, r"the token of entry 1 \(dash\) has 5 characters, use at least 16"),
        ({"sha256:abc": {"role": "viewer"}}, "entry 1 begins with sha256: but 64 hex digits do not follow"),
        ({TOKEN: {"role": "tenant", "name": "t"}}, r"entry 1 \(t\) is a tenant without jobs"),
        ({TOKEN: {"role": "viewer", "name": "v", "jobs": ["a"]}}, "has jobs, which only limit a tenant"),
        ({TOKEN: {"role": "viewer"}, f"sha256:{DIGEST}": {"role": "admin"}}, "entry 2 has the same token as entry 1"),
        ([], "Expected `object`"),
    ],
)
def test_a_wrong_setting_is_named_without_its_token(entries: Any, said: str) -> None:
    with pytest.raises(StartError, match=said) as raised:
        Auth.from_json(json.dumps(entries))
    assert TOKEN not in str(raised.value)
    assert "short" not in str(raised.value)
    assert raised.value.do_next


def test_text_that_is_no_json_is_named() -> None:
    with pytest.raises(StartError, match="GOODPUT_API_TOKENS: JSON is malformed"):
        Auth.from_json("token=viewer")


def test_roles_are_ordered() -> None:
    assert [role.rank for role in (Role.TENANT, Role.VIEWER, Role.OPERATOR, Role.ADMIN)] == [0, 1, 2, 3]


def test_a_tenant_sees_its_own_jobs_and_nothing_without_a_job() -> None:
    tenant = Principal("team-a", Role.TENANT, frozenset({"a1", "a2"}))
    assert tenant.visible(["a1", "b1", "a2"]) == ["a1", "a2"]
    assert not tenant.sees(None)
    tenant.check_job("a1")


def test_somebody_elses_job_looks_like_one_that_does_not_exist() -> None:
    tenant = Principal("team-a", Role.TENANT, frozenset({"a1"}))
    for job in ("b1", None):
        with pytest.raises(Problem, match="no such verdict") as raised:
            tenant.check_job(job, "verdict")
        assert raised.value.status_code == 404


def test_everybody_else_sees_everything() -> None:
    viewer = Principal("dash", Role.VIEWER)
    assert viewer.sees(None)
    assert viewer.sees("any")
