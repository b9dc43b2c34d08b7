"""The admission session: one decision of admission in the making, as a value.

Each command is a function that takes a session and returns the next one, with its events in it. Two named policies
(`PoolConfig.admission`): `first-come` rejects only what cannot be kept beside earlier promises; `selective` also
rejects what would displace more than it is worth.
Source: ElasticFlow, section 4.1 and Algorithm 1 (shared/scheduling).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages.commands import id_of
from elasticflow.shared.messages.events import AdmissionEvent
from elasticflow.shared.messages.gpus import ShareSchedule
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan, Proposal
from elasticflow.shared.scheduling.admission.admission_pricing import AdmissionPricing, Submitted, older_demand
from elasticflow.shared.scheduling.admission.admission_search import AdmissionSearch, earliest_deadline_around_s
from elasticflow.shared.scheduling.admission.planned_pool import PlannedPool, planned_pool
from elasticflow.shared.scheduling.admission.whole_blocks import first_with_whole_gangs_s, packs
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.scheduler_view import PlannedTime, migration_budget
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold.ledger_fold import apply
from elasticflow.shared.state.fold.profiles import with_profile
from elasticflow.shared.state.gpu_types import part_after, parts, spec_on
from elasticflow.shared.state.nodes import PromisableGpus
from elasticflow.shared.state.pool import PoolState, QuoteReservation, spec_of

# of one decision: each costs as much as ten submissions, and all of them wait for it
MAX_THOROUGH_REJECTIONS = 1
MAX_FULL_SEARCHES = 16  # of one decision: with more submissions or rejections than that, searches are short
FEW_JOBS = 256  # beside more, a short search makes no trial
FILLINGS_IN_A_RUSH = 4_096  # of one decision, about 50 ms; then jobs are only promised that fit without moving others


@dataclass(frozen=True, kw_only=True)  # not slotted, for `fast_replace`
class AdmissionSession:
    """The events of one decision so far on the GPUs of one type, and the pool and the plan that it leaves.

    pool: with all types, over which quotas count. state: the part of it with this type, with all events of this
    decision. planned_state: where the plan started; later promises are in the plan.
    planned, search, pricing: None until a command needs them, see `with_plan`, `with_search`, `with_pricing`.
    pricing_afterwards: of offers, see `with_pricing_afterwards`.
    submitted: least GPU-seconds and window of the submissions at hand, all of which count as demand; inf: unknown.
    rejected: jobs that did not fit this plan. changes_reported: whether an event already carries `changed_schedules`.

    `accept` hands the plan's arrays on to the session that it returns; the earlier session must not plan again.
    """

    pool: PoolState
    state: PoolState
    planned_state: PoolState
    now_s: float
    cache: PlanningCache
    events: tuple[AdmissionEvent, ...] = ()
    planned: PlannedPool | None = None
    search: AdmissionSearch | None = None
    pricing: AdmissionPricing | None = None
    pricing_afterwards: AdmissionPricing | None = None
    submitted: tuple[Submitted, ...] = ()
    rejected: tuple[SchedulableJob, ...] = ()
    num_accepted: int = 0
    num_rejections: int = 0
    changes_reported: bool = False

    @staticmethod
    def start(
        state: PoolState, now_s: float, cache: PlanningCache | None = None, pool: PoolState | None = None
    ) -> "AdmissionSession":
        """A session without events. pool: if the state is only a part of it."""
        cache = PlanningCache() if cache is None else cache
        return AdmissionSession(pool=pool or state, state=state, planned_state=state, now_s=now_s, cache=cache)

    # --- the next session -----------------------------------------------------------------------------------

    def with_event(self, event: AdmissionEvent) -> "AdmissionSession":
        """One event more, folded into the state; the plan stays.

        In a pool of one type, the session of the type and that of the whole pool fold the same event into one state.
        """
        state = self.cache.last(apply, self.state, event, self.state.sequence + 1)
        return fast_replace(self, state=state, events=(*self.events, event))

    def replanned(self) -> "AdmissionSession":
        """Plan anew on the present state: something other than a new promise has changed the pool."""
        return fast_replace(
            self,
            planned_state=self.state,
            planned=None,
            search=None,
            pricing_afterwards=None,
            rejected=(),
            num_accepted=0,
            changes_reported=False,
        )

    def with_plan(self) -> "AdmissionSession":
        """The session with all promises laid out from now on."""
        if self.planned is not None:
            return self
        return fast_replace(self, planned=planned_pool(self.planned_state, self.now_s, self.cache))

    def with_search(self) -> "AdmissionSession":
        """The session with a search for one more promise: a full one, unless many submissions await this decision."""
        if self.search is not None:
            return self
        is_rush = max(len(self.submitted), self.num_rejections + 1) > MAX_FULL_SEARCHES
        ready = self.with_plan()
        if is_rush:
            search = AdmissionSearch(ready.plan, FEW_JOBS, budget=FILLINGS_IN_A_RUSH)
        else:
            search = AdmissionSearch(ready.plan)
        return fast_replace(ready, search=search)

    def with_pricing(self) -> "AdmissionSession":
        """The session with the prices that follow from recent demand, where admission is selective."""
        if self.pricing is not None or not self.is_selective:
            return self
        ready = self.with_plan()
        return fast_replace(ready, pricing=ready._pricing(self.submitted))

    def expecting(self, submitted: Sequence[Submitted]) -> "AdmissionSession":
        """Count these submissions as demand from now on."""
        return fast_replace(self, submitted=tuple(submitted), pricing=None, pricing_afterwards=None)

    def expecting_another(self) -> "AdmissionSession":
        """Count one submission more: a user who takes an offer or a quote submits again, at the price of now."""
        priced = self.with_pricing()
        if priced.pricing is None or priced.pricing.knows_enough:
            return priced
        return priced.expecting((*self.submitted, (math.inf, math.inf)))

    def displaced_promises(self, job: SchedulableJob) -> float:
        """How many expected promises a job displaces, under any policy."""
        pricing = self.pricing if self.pricing is not None else self._pricing(self.submitted)
        return pricing.displaced_promises(job)

    def with_pricing_afterwards(self, rejected: Submitted) -> "AdmissionSession":
        """The session with prices for offers.

        A user who takes one submits again, when this and all submissions at hand are history.
        """
        if not self.is_selective:
            return self
        ready, decided = self.with_plan(), self.submitted
        if rejected not in decided:
            decided = (*decided, rejected)
        elif ready.pricing_afterwards is not None:
            return ready
        another = ((math.inf, math.inf),)
        return fast_replace(ready, pricing_afterwards=ready._pricing(another, decided))

    def _pricing(self, coming: Sequence[Submitted], decided: Sequence[Submitted] = ()) -> AdmissionPricing:
        demand = self.planned_state.demand
        older = self.cache.last(older_demand, demand.full)
        return AdmissionPricing(demand, coming, self.now_s, self.plan, older, decided)

    def priced_afterwards(self) -> "AdmissionSession":
        """The same session at the prices of offers."""
        return fast_replace(self, pricing=self.pricing_afterwards)

    def propose(self, job: SchedulableJob) -> "tuple[AdmissionSession, Proposal | None]":
        """A way to keep this promise too, pinned if its deadline leaves no room for migrations.

        None without a search if a job that asks for less was rejected.
        """
        ready, proposal = self._propose(job)
        if proposal is not None or not job.migration_budget:
            return ready, proposal
        return ready._propose(replace(job, migration_budget=0.0))

    def _propose(self, job: SchedulableJob) -> "tuple[AdmissionSession, Proposal | None]":
        ready = self.with_search()
        if any(job.asks_no_less_than(rejected) for rejected in ready.rejected):
            return ready, None
        proposal = ready._with_blocks(job, ready.admission_search)
        return (fast_replace(ready, rejected=(*ready.rejected, job)) if proposal is None else ready), proposal

    def _with_blocks(self, job: SchedulableJob, search: AdmissionSearch) -> Proposal | None:
        """What the search proposes, if jobs that may not migrate leave all others their blocks.

        Beside jobs with several GPUs for each replica, it is asked of each promise: they are pinned, and large.
        """
        proposal = search.propose(job)
        is_asked = self.allows_migrations and (not job.migration_budget or self.has_gangs_beside(job))
        return None if proposal is not None and is_asked and not packs(self.plan, proposal) else proposal

    def has_gangs_beside(self, job: SchedulableJob) -> bool:
        """Whether some jobs have several GPUs for each replica, so that numbers of GPUs alone do not decide."""
        return bool(self.plan.gangs) or job.gpus_per_replica > 1

    def keeps_gangs(self, job: SchedulableJob) -> bool:
        """Whether the job would be promised as it is, with whole replicas of all jobs."""
        return self._with_blocks(job, AdmissionSearch(self.plan, FEW_JOBS)) is not None

    @property
    def allows_migrations(self) -> bool:
        """Whether promises have room for migrations, because places differ."""
        return migration_budget(self.planned_state) > 0.0

    def accept(self, proposal: Proposal) -> "tuple[AdmissionSession, dict[str, ShareSchedule]]":
        """Promise it. Also the schedules of other jobs that are no longer those of the ledger, by job."""
        plan, replanned = self.plan, self.changed_schedules()
        replanned |= proposal.moved(plan.table.job_ids)
        plan.accept(proposal)
        accepted = fast_replace(
            self,
            num_accepted=self.num_accepted + 1,
            search=None,
            pricing_afterwards=None,
            rejected=(),
            changes_reported=True,
        )
        return accepted, replanned

    # --- what holds beside this plan ------------------------------------------------------------------------

    @property
    def plan(self) -> AdmissionPlan:
        plan = self.planned_pool.plan
        assert len(plan.accepted) == self.num_accepted, "a later session has accepted a job on this plan"
        return plan

    @property
    def planned_pool(self) -> PlannedPool:
        assert self.planned is not None, "see with_plan"
        return self.planned

    @property
    def admission_search(self) -> AdmissionSearch:
        assert self.search is not None, "see with_search"
        return self.search

    @property
    def known_pricing(self) -> AdmissionPricing:
        assert self.pricing is not None, "see with_pricing"
        return self.pricing

    @property
    def promisable_gpus(self) -> PromisableGpus:
        """The GPUs on which promises are planned."""
        return PromisableGpus(self.plan.num_gpus, self.plan.drops)

    @property
    def quote_reservations(self) -> tuple[QuoteReservation, ...]:
        """The quote reservations that the plan keeps."""
        return self.planned_pool.held

    @property
    def is_thorough(self) -> bool:
        """Whether the next rejection may take its time."""
        return self.num_rejections < MAX_THOROUGH_REJECTIONS

    def changed_schedules(self) -> dict[str, ShareSchedule]:
        """The schedules with which the plan began that the ledger does not know yet, by job."""
        return {} if self.changes_reported else self.planned_pool.changed_schedules()

    # --- from when on, at what price ------------------------------------------------------------------------

    def earliest_deadline_s(self, job: SchedulableJob, *, tight: bool = True) -> PlannedTime | None:
        """The earliest that would be promised now, in whole seconds; None if none would be.

        tight: one second less is rejected. Otherwise the earliest that moves no other job: mostly a little later
        and much cheaper, for when many submissions come at once.
        """
        if tight:
            earliest_s = self.admission_search.earliest_deadline_s(job)
        else:
            earliest_s = earliest_deadline_around_s(self.plan, job)
        if earliest_s is not None and self.has_gangs_beside(job):
            around_s = earliest_deadline_around_s(self.plan, job)
            earliest_s = earliest_s if around_s is None else max(earliest_s, around_s)
            # the request itself was rejected
            from_s = earliest_s if job.deadline_s == math.inf else max(earliest_s, job.deadline_s + 1.0)
            earliest_s = first_with_whole_gangs_s(self.plan, job, from_s, self.keeps_gangs)
        if earliest_s is None:
            return None
        return self.first_affordable_s(job, earliest_s, 1.0 if tight else math.inf)

    @property
    def is_selective(self) -> bool:
        return self.state.config.admission == "selective"

    def price_limit_gpu_seconds(self, job: SchedulableJob) -> float:
        """GPU-seconds for which a job with such a window is taken; inf if this job is taken."""
        return self.known_pricing.price_limit_gpu_seconds(job)

    def most_displaced_within_s(self, job: SchedulableJob) -> tuple[float, float]:
        """When most of the promises that an overpriced job displaces are due: from when until when."""
        return self.known_pricing.most_displaced_within_s(job)

    def is_overpriced(self, job: SchedulableJob) -> bool:
        """Whether selective admission keeps the GPUs for other jobs."""
        return self.is_selective and self.known_pricing.is_overpriced(job)

    def first_affordable_s(self, job: SchedulableJob, from_s: float, within_s: float) -> PlannedTime | None:
        """The first deadline from this one on at which the job is not overpriced, to `within_s` seconds."""
        if not self.is_selective:
            return PlannedTime(from_s)
        first_s = self.known_pricing.first_affordable_s(job, from_s, within_s)
        return None if first_s is None else PlannedTime(first_s)


# --- sessions by type ----------------------------------------------------------------------------------
# One decision of admission on all GPU types: a session for each type, and one for what concerns none.


@dataclass(frozen=True, slots=True)
class SessionsByType:
    """whole: has the events of the decision, and plans nothing. by_type: each plans the part of its type.

    A pool of one type is its only part (docs/adr/0047).
    """

    whole: AdmissionSession
    by_type: Mapping[str, AdmissionSession]

    @staticmethod
    def start(state: PoolState, now_s: float, cache: PlanningCache) -> "SessionsByType":
        """Sessions without events."""
        by_type = {
            gpu_type: AdmissionSession.start(part, now_s, cache.of_type(gpu_type), state)
            for gpu_type, part in parts(state).items()
        }
        return SessionsByType(AdmissionSession.start(state, now_s, cache), by_type)

    @property
    def state(self) -> PoolState:
        """The whole pool, with all events of this decision."""
        return self.whole.state

    def ready(self, gpu_type: str, spec: JobSpec) -> AdmissionSession:
        """The session of the type, with a curve for the GPU range of a submitted spec."""
        session = self.by_type[gpu_type]
        return fast_replace(session, state=with_profile(session.state, spec_on(self.state, spec, gpu_type)))

    def on_job(self, job_id: str, decide: Callable[[AdmissionSession], AdmissionSession]) -> "SessionsByType":
        """Decide in the session that plans the job; in that of the whole pool, which plans nothing, if it is not
        live."""
        job = self.state.live_jobs.get(job_id)
        if job is None:
            return self.after_whole(decide(self.whole))
        gpu_type = spec_of(job).gpu_type
        return self.after_type(gpu_type, decide(self.by_type[gpu_type]))

    def with_session(self, gpu_type: str, session: AdmissionSession) -> "SessionsByType":
        """The sessions with what the session of a type has learned; its events are given up."""
        learned = _on_part(session, self.by_type[gpu_type].state, self.state)
        return SessionsByType(self.whole, {**self.by_type, gpu_type: learned})

    def after_whole(self, whole: AdmissionSession) -> "SessionsByType":
        """The sessions after a command that plans nothing."""
        job_ids = set(_named_jobs(whole.events[len(self.whole.events) :]))
        by_type = {
            gpu_type: _on_part(session, part_after(whole.state, session.state, gpu_type, job_ids), whole.state)
            for gpu_type, session in self.by_type.items()
        }
        return SessionsByType(fast_replace(whole, pool=whole.state), by_type)

    def after_type(
        self, gpu_type: str, session: AdmissionSession, events: Sequence[AdmissionEvent] | None = None
    ) -> "SessionsByType":
        """The sessions after a command on a job of this type.

        events: those for the ledger, if not those of the session.
        """
        whole = self.whole
        for event in session.events if events is None else events:
            whole = whole.with_event(event)
        return SessionsByType(self.whole, {**self.by_type, gpu_type: session}).after_whole(whole)


def _on_part(session: AdmissionSession, part: PoolState, pool: PoolState) -> AdmissionSession:
    """The session on the newest state, without events. A plan that was made stays the plan."""
    planned_state = part if session.planned is None else session.planned_state
    return fast_replace(session, pool=pool, state=part, planned_state=planned_state, events=())


def _named_jobs(events: Sequence[AdmissionEvent]) -> Iterator[str]:
    """The jobs that these events may change. Events about padding loads name none, and an id of a load does no harm."""
    for event in events:
        yield id_of(event)
        yield from getattr(event, "replanned", ())
