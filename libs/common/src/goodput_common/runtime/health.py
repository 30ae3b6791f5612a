"""Health: is the process alive (`/healthz`), and may it be given work (`/readyz`)?

Ready means: every part has started, none is stopping, and every required check passes. A check that neither passes nor
fails in its time is **unknown**: not ready, and reported as what it is. Reports are shared for `cache_s`, so that impatient
pollers cost one round of checks.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Check = Callable[[], Awaitable[bool | None]]


class CheckState(enum.StrEnum):
    OK = "ok"
    FAILING = "failing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    state: CheckState
    reason: str
    required: bool
    took_ms: float


@dataclass(frozen=True, slots=True)
class HealthReport:
    """`reason` says, when not ready, what is missing."""

    ready: bool
    reason: str
    checks: tuple[CheckResult, ...]


@dataclass(frozen=True, slots=True)
class _Registered:
    check: Check
    timeout_s: float
    required: bool


class Health:
    """Named checks and the ready flag. A check returns (None or True), returns False, or raises with the reason."""

    def __init__(self, *, cache_s: float = 1.0, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._checks: dict[str, _Registered] = {}
        self._phase = "starting"
        self._ready = False
        self._cache_s = cache_s
        self._monotonic_s = monotonic_s
        self._cached: tuple[float, tuple[CheckResult, ...]] | None = None
        self._running: asyncio.Task[tuple[CheckResult, ...]] | None = None

    @property
    def ready(self) -> bool:
        """All parts have started and none is stopping; the checks are not asked."""
        return self._ready

    @property
    def phase(self) -> str:
        return self._phase

    def set_phase(self, phase: str, *, ready: bool) -> None:
        """Called by the lifecycle: starting, ready, stopping."""
        self._phase, self._ready = phase, ready

    def add(self, name: str, check: Check, *, timeout_s: float = 2.0, required: bool = True) -> None:
        """Register a check; one that is not `required` is reported but does not take the service out of rotation."""
        if name in self._checks:
            raise ValueError(f"health check {name!r} is registered twice")
        self._checks[name] = _Registered(check, timeout_s, required)

    async def report(self) -> HealthReport:
        checks = await self._results()
        missing = [f"{each.name} is {each.state}: {each.reason}" for each in checks if each.required and each.state != "ok"]
        if not self._ready:
            missing.insert(0, f"the service is {self._phase}")
        return HealthReport(not missing, "; ".join(missing), checks)

    async def _results(self) -> tuple[CheckResult, ...]:
        if self._cached is not None and self._monotonic_s() - self._cached[0] < self._cache_s:
            return self._cached[1]
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run_all(), name="health checks")
        return await asyncio.shield(self._running)

    async def _run_all(self) -> tuple[CheckResult, ...]:
        results = await asyncio.gather(*(self._run(name, each) for name, each in self._checks.items()))
        self._cached = (self._monotonic_s(), tuple(results))
        return tuple(results)

    async def _run(self, name: str, registered: _Registered) -> CheckResult:
        began_s = self._monotonic_s()
        state, reason = CheckState.OK, ""
        try:
            async with asyncio.timeout(registered.timeout_s):
                if await registered.check() is False:
                    state, reason = CheckState.FAILING, "the check answered no"
        except TimeoutError:
            state, reason = CheckState.UNKNOWN, f"no answer within {registered.timeout_s} s"
        except Exception as error:  # noqa: BLE001 - whatever a check raises is its finding
            state, reason = CheckState.FAILING, str(error) or type(error).__name__
        return CheckResult(name, state, reason, registered.required, round((self._monotonic_s() - began_s) * 1e3, 1))
