"""Any history of verdicts, ticks, crashes, people and outcomes keeps the promises of the service.

The machine plays the shell: it feeds the domain, stores what it returns, and carries out what it orders, with a crash
possible between any two lines of the execution. Three incidents on two jobs share one fabric's budget.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from datetime import timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from goodput_common.contracts.recovery import PlanState
from goodput_common.contracts.verdict import ActionKind, FaultClass, VerdictState
from goodput_recovery.domain import incident as chain
from goodput_recovery.domain.budget import Spent, Usage
from goodput_recovery.domain.gate import BY_POLICY, Context
from goodput_recovery.domain.incident import Decision, Incident, Moved
from goodput_recovery.domain.plan import ACTIVE, PASSIVE, IllegalTransition, Plan
from goodput_recovery.domain.policy import Budget, Policy
from goodput_recovery.domain.progress import Outcome, Seen
from goodput_recovery.testing import LINK, START, make_context, make_facts, make_verdict

P = PlanState
POLICY = Policy(
    settle_s=2.0,
    approval_within_s=60.0,
    actions_per_incident_max=2,
    plans_per_incident_max=8,
    budget=Budget(
        fabric_actions_max=4,
        fabric_window_s=300,
        fabric_concurrent_max=2,
        job_actions_max=3,
        job_window_s=300,
        wait_s_max=30,
        nodes_out_share_max=0.5,
        breaker_incidents=100,
    ),
)
JOBS = {"i1": "job-1", "i2": "job-1", "i3": "job-2"}
FAULTS = (
    (FaultClass.GPU_OFF_BUS, "gpu:h1/3"),
    (FaultClass.LINK_FLAP, LINK),
    (FaultClass.PROCESS_DEAD, "rank:job-1/3"),
    (FaultClass.UNDETERMINED, None),
)
INCIDENTS = st.sampled_from(sorted(JOBS))


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.stored: dict[str, Incident] = {}
        self.deeds: dict[str, int] = {}  # what the launcher would have been told, by plan
        self.tokens: list[int] = []
        self.paused = ""
        self.announced: set[tuple[str, PlanState]] = set()
        self.returned: Counter[str] = Counter()  # how often an incident that was resolved came back

    # -- the shell ---------------------------------------------------------------------------------------------------

    def plans(self) -> list[Plan]:
        return [plan for incident in self.stored.values() for plan in incident.plans]

    def context(self, incident: str) -> Context:
        spent = tuple(
            Spent(
                plan=plan.id,
                job=plan.job,
                kind=plan.action,
                host=plan.host,
                at=plan.acted_at,
                running=plan.state in (P.EXECUTING, P.VERIFYING),
            )
            for plan in self.plans()
            if plan.acted_at is not None
        )
        recovered = [
            plan.changed_at
            for plan in self.plans()
            if plan.executed and plan.state is P.RECOVERED and plan.job == JOBS[incident] and plan.incident != incident
        ]
        return make_context(
            self.now,
            policy=POLICY,
            facts=make_facts(spare_nodes=5),
            usage=Usage(spent=spent, hosts_known=4),
            token=max(self.tokens, default=0) + 1,
            paused=self.paused,
            job_recovered_at=max(recovered, default=None),
        )

    def keep(self, decision: Decision) -> None:
        before = self.stored.get(decision.incident.id)
        known = {plan.id: plan for plan in before.plans} if before else {}
        for event in decision.events:
            if not isinstance(event, Moved):
                continue
            plan = event.plan
            assert (plan.id, plan.state) not in self.announced, "a state is announced once"
            self.announced.add((plan.id, plan.state))
            if event.previous is None:
                assert plan.id not in known and plan.state is P.PROPOSED
            else:
                assert plan.state in (PASSIVE if plan.passive else ACTIVE)[event.previous]
            if plan.state is P.EXECUTING:
                self._begins(decision.incident, plan)
        for plan in decision.incident.plans:
            if plan.id in known:
                old = known[plan.id]
                assert (old.action, old.target, old.created_at, old.ordinal) == (
                    plan.action,
                    plan.target,
                    plan.created_at,
                    plan.ordinal,
                ), "a plan never changes what it orders"
        self.stored[decision.incident.id] = decision.incident

    def _begins(self, incident: Incident, plan: Plan) -> None:
        assert not self.paused
        assert plan.fencing_token > max(self.tokens, default=0)
        self.tokens.append(plan.fencing_token)
        enough = incident.verdict.confidence >= POLICY.threshold_of(plan.action)
        assert enough or plan.approved_by not in ("", BY_POLICY)
        assert incident.verdict.state is not VerdictState.RESOLVED
        assert plan.action not in (ActionKind.OBSERVE, ActionKind.HAND_TO_PERSON)

    @initialize(faults=st.tuples(*[st.sampled_from(FAULTS)] * 3))
    def it_begins(self, faults: tuple[tuple[FaultClass, str | None], ...]) -> None:
        for incident, fault in zip(sorted(JOBS), faults, strict=True):
            verdict = make_verdict(*fault, job=JOBS[incident], incident=incident, at=self.now)
            self.keep(chain.heard(None, verdict, self.context(incident)))

    # -- what happens ------------------------------------------------------------------------------------------------

    @rule(
        incident=INCIDENTS,
        newer=st.sampled_from([-1, 0, 1, 1, 1]),
        fault=st.sampled_from(FAULTS),
        confidence=st.sampled_from([0.9, 0.9, 0.9, 0.4, 0.2]),
        recommended=st.sampled_from([ActionKind.REINIT_COMMUNICATORS, ActionKind.SWAP_NODE]),
        resolved=st.sampled_from([False] * 7 + [True]),
    )
    def a_version_arrives(
        self,
        incident: str,
        newer: int,
        fault: tuple[FaultClass, str | None],
        confidence: float,
        recommended: ActionKind,
        resolved: bool,
    ) -> None:
        known = self.stored[incident].verdict.version if incident in self.stored else 0
        verdict = make_verdict(
            *fault,
            version=max(1, known + newer),
            state=VerdictState.RESOLVED if resolved else VerdictState.REVISED,
            confidence=confidence,
            recommended=recommended,
            job=JOBS[incident],
            incident=incident,
            at=self.now,
        )
        over = incident in self.stored and self.stored[incident].verdict.state is VerdictState.RESOLVED
        self.returned[incident] += over and newer > 0 and not resolved
        for _ in range(2):  # every message is delivered twice
            self.keep(chain.heard(self.stored.get(incident), verdict, self.context(incident)))

    @rule(seconds=st.sampled_from([0.25, 1.0, 2.5, 10.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(incident=INCIDENTS)
    def the_gate_looks(self, incident: str) -> None:
        if incident in self.stored:
            self.keep(chain.ticked(self.stored[incident], self.context(incident)))

    @rule(data=st.data(), done=st.booleans(), crash=st.booleans())
    @precondition(lambda self: any(plan.state is P.EXECUTING for plan in self.plans()))
    def the_executor_works_and_may_crash(self, data: st.DataObject, done: bool, crash: bool) -> None:
        plan = data.draw(st.sampled_from([plan for plan in self.plans() if plan.state is P.EXECUTING]))
        newest = max(
            (other.fencing_token for other in self.plans() if other.id in self.deeds and other.job == plan.job), default=0
        )
        assert newest <= plan.fencing_token, "actions on one job are carried out in the order of their tokens"
        self.deeds.setdefault(plan.id, 0)
        if self.deeds[plan.id] == 0:
            self.deeds[plan.id] += 1  # the record is by plan id, so a second try changes nothing
        if crash:
            return
        incident = self.stored[plan.incident]
        self.keep(chain.acted(incident, plan.id, done=done, result="done", ctx=self.context(plan.incident)))

    @rule(data=st.data(), outcome=st.sampled_from(list(Outcome)))
    @precondition(lambda self: any(plan.state is P.VERIFYING for plan in self.plans()))
    def verification_looks(self, data: st.DataObject, outcome: Outcome) -> None:
        plan = data.draw(st.sampled_from([plan for plan in self.plans() if plan.state is P.VERIFYING]))
        incident = self.stored[plan.incident]
        self.keep(chain.judged(incident, plan.id, Seen(outcome, "seen"), self.context(plan.incident)))

    @rule(data=st.data(), approve=st.sampled_from([True, True, True, False]), who=st.sampled_from(["anna", "otto"]))
    @precondition(lambda self: bool(self.plans()))
    def a_person_decides(self, data: st.DataObject, approve: bool, who: str) -> None:
        plan = data.draw(st.sampled_from(self.plans()))
        incident = self.stored[plan.incident]
        act = chain.approve if approve else chain.veto
        with contextlib.suppress(IllegalTransition):
            self.keep(act(incident, plan.id, who, "because", self.context(plan.incident)))

    @rule(incident=INCIDENTS, outcome=st.sampled_from([Outcome.RECOVERED, Outcome.FAILED, Outcome.WAIT]))
    def things_take_their_course(self, incident: str, outcome: Outcome) -> None:
        """The usual way through the states, so that histories reach beyond the first execution."""
        if incident not in self.stored:
            return
        self.now += timedelta(seconds=6)
        for _ in range(2):
            self.keep(chain.ticked(self.stored[incident], self.context(incident)))
        plan = self.stored[incident].plans[-1] if self.stored[incident].plans else None
        if plan is not None and plan.state is P.EXECUTING:
            self.deeds[plan.id] = 1
            self.keep(chain.acted(self.stored[incident], plan.id, done=True, result="done", ctx=self.context(incident)))
            self.keep(chain.judged(self.stored[incident], plan.id, Seen(outcome, "seen"), self.context(incident)))

    @rule(paused=st.sampled_from(["", "", "", "by anna"]))
    def recovery_is_paused_or_not(self, paused: str) -> None:
        self.paused = paused

    # -- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def one_chain_an_incident_with_one_open_plan(self) -> None:
        for incident in self.stored.values():
            assert sum(plan.open for plan in incident.plans) <= 1
            assert [plan.ordinal for plan in incident.plans] == list(range(1, len(incident.plans) + 1))
            assert len({plan.id for plan in incident.plans}) == len(incident.plans)
            assert len(incident.plans) <= POLICY.plans_per_incident_max

    @invariant()
    def one_executed_action_unless_it_failed_or_the_fault_came_back(self) -> None:
        for name, incident in self.stored.items():
            executed = incident.executed
            assert len(executed) <= POLICY.actions_per_incident_max
            assert {plan.state for plan in executed[:-1]} <= {P.FAILED, P.RECOVERED}
            helped = sum(plan.state is P.RECOVERED for plan in executed[:-1])
            assert helped <= self.returned[name], "another action needs one that failed, or a fault that came back"
            assert len({(plan.action, plan.target) for plan in executed}) == len(executed)
        assert all(count == 1 for count in self.deeds.values())
        assert set(self.deeds) <= {plan.id for plan in self.plans() if plan.executed}

    @invariant()
    def budgets_hold(self) -> None:
        executed = [plan for plan in self.plans() if plan.acted_at is not None]
        running = [plan for plan in executed if plan.state in (P.EXECUTING, P.VERIFYING)]
        assert len(running) <= POLICY.budget.fabric_concurrent_max
        assert len({plan.job for plan in running}) == len(running)
        recent = [plan for plan in executed if plan.acted_at and plan.acted_at > self.now - timedelta(seconds=300)]
        assert len(recent) <= POLICY.budget.fabric_actions_max
        for job in set(JOBS.values()):
            assert sum(plan.job == job for plan in recent) <= POLICY.budget.job_actions_max

    @invariant()
    def a_vetoed_plan_was_not_executed(self) -> None:
        for plan in self.plans():
            if plan.state in (P.VETOED, P.REFUSED, P.SUPERSEDED):
                assert not plan.executed and plan.id not in self.deeds


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
