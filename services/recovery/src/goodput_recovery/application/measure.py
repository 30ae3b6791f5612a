"""The figures that matter: how long from verdict to plan, to action, to proof, and how plans end."""

from __future__ import annotations

from goodput_common.contracts.recovery import PlanState
from goodput_common.contracts.verdict import Verdict
from goodput_common.runtime.metrics import Metrics
from goodput_recovery.domain.plan import Plan

_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)


class Measures:
    def __init__(self, metrics: Metrics) -> None:
        self._plans = metrics.counter("recovery_plans_total", "Plans that reached a state", ["action", "state"])
        self._decide_s = metrics.histogram(
            "recovery_decide_seconds", "From the verdict's publication to execution", ["action"], buckets=_SECONDS
        )
        self._verify_s = metrics.histogram(
            "recovery_verify_seconds", "From execution to proof that steps resume", ["action"], buckets=_SECONDS
        )
        self._repair_s = metrics.histogram(
            "recovery_repair_seconds", "From the first evidence of the fault to recovered", ["fault_class"], buckets=_SECONDS
        )
        self._open = metrics.gauge("recovery_plans_open", "Open plans by state", ["state"])
        self._asked = metrics.counter("recovery_agent_commands_total", "Commands to ranks", ["kind", "status"])
        self._leading = metrics.gauge("recovery_leading", "1 while this replica acts for the fabric")
        self.leading(False)

    def moved(self, plan: Plan, verdict: Verdict) -> None:
        self._plans.labels(str(plan.action), str(plan.state)).inc()
        if plan.state is PlanState.EXECUTING:
            self._decide_s.labels(str(plan.action)).observe(
                max(0.0, (plan.changed_at - verdict.published_at).total_seconds())
            )
        if plan.state is PlanState.RECOVERED and plan.acted_at is not None:
            self._verify_s.labels(str(plan.action)).observe((plan.changed_at - plan.acted_at).total_seconds())
            mended_s = (plan.changed_at - verdict.first_evidence_at).total_seconds()
            self._repair_s.labels(str(plan.fault_class)).observe(max(0.0, mended_s))

    def open_plans(self, plans: list[Plan]) -> None:
        for state in PlanState:
            self._open.labels(str(state)).set(sum(plan.state is state for plan in plans))

    def asked(self, kind: str, status: str) -> None:
        self._asked.labels(kind, status).inc()

    def leading(self, yes: bool) -> None:
        self._leading.set(1 if yes else 0)
