"""A recorded history beside what another policy makes of it: first decision by decision, then to the end.

Decision by decision, the other policy is asked on the recorded states: nothing is modelled, and the first answers that
differ are exact. To the end, it lives with its own decisions, in the model of `counterfactual`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from shared.messages.events import AllocationDecided, JobAdmitted, JobRejected, PlanDecided, PoolConfigured
from shared.messages.job_state import Job, Phase
from shared.messages.policy import Policy
from shared.messages.pool_state import PoolState
from simulator.baselines.adapter import baseline_policies
from simulator.baselines.catalogue import BASELINES
from simulator.counterfactual import run_on
from simulator.given import roll
from simulator.policies import PLANNERS
from simulator.replay import Entry
from simulator.trace_driven.strategies import OURS

Fate = Literal[
    "met", "late", "open", "rejected", "failed", "cancelled", "finished", "unfinished", "undecided"
]

_ENDS: Mapping[Phase, Fate] = {
    Phase.REJECTED: "rejected",
    Phase.CANCELLED: "cancelled",
    Phase.FAILED: "failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherDecision:
    """One recorded decision that the other policy would have taken otherwise on the same state.

    Of admission: "admitted" or "rejected" by job; of the allocator: GPUs by job. Only what differs is named.
    """

    sequence: int
    now_s: float
    recorded: Mapping[str, object]
    other: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFates:
    """What became of one job, what the model makes of the recorded policies, and of the other one."""

    job_id: str
    deadline_s: float | None
    recorded: Fate
    modelled: Fate
    other: Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Jobs that had ended by from_sequence are not counted.

    The record is judged at its end, the model when the last deadline has passed.
    """

    policy: str
    from_sequence: int
    until_sequence: int
    until_s: float
    modelled_until_s: float
    first_admission: OtherDecision | None
    first_allocation: OtherDecision | None
    num_admissions_that_differ: int
    jobs: tuple[JobFates, ...]

    def count(self, whose: Literal["recorded", "modelled", "other"]) -> Mapping[Fate, int]:
        """Jobs by fate."""
        return Counter(getattr(job, whose) for job in self.jobs)


def compare(entries: tuple[Entry, ...], from_sequence: int, name: str) -> Comparison:
    """The record after `from_sequence` beside policy `name`: one of OURS or BASELINES."""
    changed = _with_admission(entries, name)
    policies = policies_of(name)
    until_s = entries[-1].stored_at_s
    before, jobs = roll(entries[:from_sequence]), roll(entries)
    last_s = max((job.deadline_s for job in jobs.values() if job.deadline_s is not None), default=until_s)
    last_s = max(last_s, until_s)
    modelled = run_on(entries, from_sequence, PLANNERS, last_s)
    other = run_on(changed, from_sequence, policies, last_s)
    admissions = tuple(_other_decisions(changed, from_sequence, policies["admission"]))
    return Comparison(
        policy=name,
        from_sequence=from_sequence,
        until_sequence=entries[-1].sequence,
        until_s=until_s,
        modelled_until_s=last_s,
        first_admission=admissions[0] if admissions else None,
        first_allocation=next(_other_decisions(changed, from_sequence, policies["allocator"]), None),
        num_admissions_that_differ=sum(len(decision.other) for decision in admissions),
        jobs=tuple(
            JobFates(
                job_id=job_id,
                deadline_s=job.deadline_s,
                recorded=fate(job, until_s),
                modelled=fate(modelled.get(job_id), last_s),
                other=fate(other.get(job_id), last_s),
            )
            for job_id, job in sorted(jobs.items())
            if job_id not in before or before[job_id].live
        ),
    )


def policies_of(name: str) -> Mapping[str, Policy[Any]]:
    """The planners by service under this name; users of a live pool ask for no GPUs."""
    if name in OURS:
        return PLANNERS
    admission, allocator = baseline_policies(BASELINES[name])
    return {**PLANNERS, "admission": admission, "allocator": allocator}


def fate(job: Job | None, at_s: float) -> Fate:
    """What has become of a job by an instant; open: its deadline is still to come."""
    if job is None or job.phase is Phase.PROFILING:
        return "undecided"
    if job.phase in _ENDS:
        return _ENDS[job.phase]
    if job.deadline_s is None:
        return "unfinished" if job.ended_at_s is None else "finished"
    if job.ended_at_s is not None:
        return "met" if job.ended_at_s <= job.deadline_s else "late"
    return "open" if at_s < job.deadline_s else "late"


def _with_admission(entries: tuple[Entry, ...], name: str) -> tuple[Entry, ...]:
    """The record of a pool whose setting of admission is this one; a baseline looks at no such setting."""
    if name not in OURS:
        return entries

    def changed(event: Any) -> Any:
        if not isinstance(event, PoolConfigured):
            return event
        return replace(event, config=replace(event.config, admission=name))

    return tuple(
        replace(entry, message=replace(entry.message, events=tuple(map(changed, entry.message.events))))
        if isinstance(entry.message, PlanDecided)
        else entry
        for entry in entries
    )


def _other_decisions(
    entries: tuple[Entry, ...], from_sequence: int, policy: Policy[Any]
) -> Iterator[OtherDecision]:
    """The recorded decisions of this service after `from_sequence` that `policy` would have taken otherwise."""
    state = policy.start(PoolState())
    since_plan = {0: state}
    for entry in entries:
        plan = entry.message
        if isinstance(plan, PlanDecided):
            asked = plan.service == policy.service and entry.sequence > from_sequence
            if asked and plan.based_on in since_plan:
                rested_on = since_plan[plan.based_on]
                again = policy.decide(rested_on, plan.commands, plan.now_s)
                differing = _differing(_in_short(plan.events), _in_short(again), policy.pool(rested_on))
                if again and differing:
                    recorded, other = zip(*differing.values(), strict=True)
                    yield OtherDecision(
                        sequence=entry.sequence,
                        now_s=plan.now_s,
                        recorded=dict(zip(differing, recorded, strict=True)),
                        other=dict(zip(differing, other, strict=True)),
                    )
            since_plan = {}
        state = policy.evolve(state, plan, entry.sequence)
        since_plan[entry.sequence] = state


def _in_short(events: tuple[Any, ...]) -> dict[str, object]:
    """Verdicts or GPUs by job."""
    short: dict[str, object] = {}
    for event in events:
        match event:
            case JobAdmitted(job_id=job_id):
                short[job_id] = "admitted"
            case JobRejected(job_id=job_id):
                short[job_id] = "rejected"
            case AllocationDecided(num_gpus_by_job=num_gpus_by_job):
                short |= num_gpus_by_job
            case _:
                pass
    return short


def _differing(
    recorded: Mapping[str, object], other: Mapping[str, object], pool: PoolState
) -> dict[str, tuple[object, object]]:
    """What the two say of jobs on which both decide: those that ask to come in, and the shares of those that have.

    A job that is being measured first is left out: a pre-run is no part of other policies.
    """
    return {
        job_id: (recorded.get(job_id, 0), other.get(job_id, 0))
        for job_id in sorted(recorded.keys() | other.keys())
        if recorded.get(job_id, 0) != other.get(job_id, 0)
        and (_is_admitted(pool, job_id) or (job_id in recorded and job_id in other))
    }


def _is_admitted(pool: PoolState, job_id: str) -> bool:
    job = pool.live_jobs.get(job_id)
    return job is not None and job.phase is Phase.ADMITTED
