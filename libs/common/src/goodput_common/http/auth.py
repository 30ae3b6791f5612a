"""Who may call the API: bearer tokens, each with a role and, for tenants, the jobs that they may see.

`GOODPUT_API_TOKENS` is a JSON object: `{"<token>": {"role": "viewer", "name": "dashboard"}, "sha256:<hex>": {"role":
"tenant", "name": "team-a", "jobs": ["llm-7b"]}}`. Only hashes are kept in memory; a token given as its hash is in no file
either. A presented token is hashed and compared with every entry in constant time.

A tenant asking for somebody else's job gets the same 404 as for one that does not exist.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from goodput_common.http.problem import Problem
from goodput_common.runtime.lifecycle import StartError

TOKEN_CHARS_MIN = 16
_TOKEN_CHARS_MAX = 4096
_HASHED = re.compile(r"^sha256:([0-9a-f]{64})$")
_REALM = 'Bearer realm="goodput"'


class Role(enum.StrEnum):
    """Each may do what the ones before it may."""

    TENANT = "tenant"  # read what belongs to its own jobs
    VIEWER = "viewer"  # read everything
    OPERATOR = "operator"  # approve and veto
    ADMIN = "admin"  # configure

    @property
    def rank(self) -> int:
        return list(Role).index(self)


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller. `jobs` is None for everything, else the only jobs that it may see."""

    name: str
    role: Role
    jobs: frozenset[str] | None = None

    def sees(self, job: str | None) -> bool:
        """What belongs to no job is not for tenants."""
        return self.jobs is None or (job is not None and job in self.jobs)

    def check_job(self, job: str | None, what: str = "job") -> None:
        """Raise the 404 that also a missing one gets."""
        if not self.sees(job):
            raise Problem(404, f"no such {what}", kind="not-found")

    def visible(self, jobs: Iterable[str]) -> list[str]:
        return [job for job in jobs if self.sees(job)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    role: Role
    name: str = ""
    jobs: tuple[str, ...] = ()


class Auth:
    """The tokens of one service. Without any, every call is refused with the advice to set some."""

    def __init__(self, principals: dict[str, Principal] | None = None) -> None:
        """`principals` maps `sha256` hex digests of tokens to their owners."""
        self._by_digest = {bytes.fromhex(digest): principal for digest, principal in (principals or {}).items()}

    @classmethod
    def from_json(cls, text: str) -> Auth:
        """From the setting. Raises StartError naming the entry by its owner or place, never by its token."""
        if not text.strip():
            return cls()
        try:
            entries = msgspec.json.decode(text, type=dict[str, _Entry])
        except msgspec.MsgspecError as error:
            raise _bad(f"GOODPUT_API_TOKENS: {str(error).split(' - at')[0]}") from None
        principals: dict[str, Principal] = {}
        for number, (token, entry) in enumerate(entries.items(), 1):
            who = f"entry {number} ({entry.name})" if entry.name else f"entry {number}"
            digest = _digest_of(token, who)
            if entry.role is Role.TENANT and not entry.jobs:
                raise _bad(f'GOODPUT_API_TOKENS: {who} is a tenant without jobs: list them under "jobs"')
            if entry.role is not Role.TENANT and entry.jobs:
                raise _bad(f"GOODPUT_API_TOKENS: {who} has jobs, which only limit a tenant: it is a {entry.role}")
            if digest in principals:
                raise _bad(f"GOODPUT_API_TOKENS: {who} has the same token as {principals[digest].name}")
            jobs = frozenset(entry.jobs) if entry.role is Role.TENANT else None
            principals[digest] = Principal(entry.name or who, entry.role, jobs)
        return cls(principals)

    def principal_of(self, token: str) -> Principal | None:
        """The owner of a token; the time taken does not depend on which entry matches."""
        if len(token) > _TOKEN_CHARS_MAX:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        found: Principal | None = None
        for known, principal in self._by_digest.items():
            if hmac.compare_digest(known, digest):
                found = principal
        return found

    def authenticate(self, credentials: HTTPAuthorizationCredentials | None) -> Principal:
        """Raises Problem 401."""
        if credentials is None:
            detail = "send a token: Authorization: Bearer <token>"
            if not self._by_digest:
                detail = "this service has no API tokens, so nobody may call it: set GOODPUT_API_TOKENS"
            raise Problem(401, detail, kind="unauthenticated", headers={"WWW-Authenticate": _REALM})
        principal = self.principal_of(credentials.credentials)
        if principal is None:
            headers = {"WWW-Authenticate": f'{_REALM}, error="invalid_token"'}
            raise Problem(401, "the token is not known here: ask for a current one", kind="unauthenticated", headers=headers)
        return principal


_bearer = HTTPBearer(auto_error=False, description="A token of GOODPUT_API_TOKENS")


@functools.cache  # one dependency a role, which FastAPI then runs once a request
def require(role: Role) -> Callable[..., Any]:
    """Dependency: `principal: Annotated[Principal, Depends(require(Role.VIEWER))]`. 401 without a valid token, 403 with a
    role below `role`."""

    def dependency(
        request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
    ) -> Principal:
        auth: Auth = request.app.state.auth
        principal = auth.authenticate(credentials)
        if principal.role.rank < role.rank:
            detail = f"this needs the role {role}, {principal.name} has {principal.role}"
            raise Problem(403, detail, kind="forbidden", required_role=str(role))
        return principal

    return dependency


Tenant = Annotated[Principal, Depends(require(Role.TENANT))]
Viewer = Annotated[Principal, Depends(require(Role.VIEWER))]
Operator = Annotated[Principal, Depends(require(Role.OPERATOR))]
Admin = Annotated[Principal, Depends(require(Role.ADMIN))]


def _digest_of(token: str, who: str) -> str:
    if match := _HASHED.match(token.lower() if token[:7].lower() == "sha256:" else token):
        return match[1]
    if token.lower().startswith("sha256:"):
        raise _bad(f"GOODPUT_API_TOKENS: {who} begins with sha256: but 64 hex digits do not follow")
    if len(token) < TOKEN_CHARS_MIN:
        raise _bad(f"GOODPUT_API_TOKENS: the token of {who} has {len(token)} characters, use at least {TOKEN_CHARS_MIN}")
    return hashlib.sha256(token.encode()).hexdigest()


def _bad(reason: str) -> StartError:
    return StartError(reason, do_next='set it to {"<token>": {"role": "viewer", "name": "…"}}')
