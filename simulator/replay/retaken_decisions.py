"""Recorded decisions, retaken on the recorded states: by the same policies (`--verify`) or by another (`--policy`)."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import zip_longest
from typing import Any

from elasticflow.shared.errors import TooLarge
from elasticflow.shared.messages.events import AllocationDecided, JobAdmitted, JobRejected, PlanDecided
from elasticflow.shared.runtime.service.ledger_encoding import fitted, split
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.job import Phase
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.replay.recorded_ledger import OPERATOR, Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDifference:
    """One field in which the recorded decision and the retaken one differ."""

    path: str
    recorded: Any
    again: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first decision that does not follow from its history, and its fields that differ."""

    sequence: int
    service: str
    based_on: int
    now_s: float
    fields: tuple[FieldDifference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """num_given: decisions of the operator, which are not retaken."""

    num_verified: int
    num_given: int
    difference: Difference | None = None


def verify(entries: Iterable[Entry], policies: Mapping[str, Policy[PoolState]]) -> Verification:
    """Retake every decision with `policies`, until one differs.

    Events may stand between a decision and the state that it is based on, but no other decision (compare-and-set).
    So only the states since the last decision are kept.
    """
    state, since_plan = PoolState(), {0: PoolState()}
    num_verified = num_given = 0
    for entry in entries:
        plan = entry.message
        state = ledger_fold.evolve(state, plan, entry.sequence)
        if not isinstance(plan, PlanDecided):
            since_plan[entry.sequence] = state
            continue
        if plan.service == OPERATOR:
            num_given += 1
        else:
            different = _field_differences(plan, since_plan, policies.get(plan.service))
            if different:
                return Verification(
                    num_verified=num_verified,
                    num_given=num_given,
                    difference=Difference(
                        sequence=entry.sequence,
                        service=plan.service,
                        based_on=plan.based_on,
                        now_s=plan.now_s,
                        fields=different,
                    ),
                )
            num_verified += 1
        since_plan = {entry.sequence: state}
    return Verification(num_verified=num_verified, num_given=num_given)


def differences(recorded: Any, again: Any, path: str = "") -> Iterator[FieldDifference]:
    """The innermost fields, items and keys in which two values differ."""
    if recorded == again:
        return
    if is_dataclass(recorded) and type(recorded) is type(again):
        for field in fields(recorded):
            yield from differences(getattr(recorded, field.name), getattr(again, field.name), f"{path}.{field.name}")
    elif isinstance(recorded, tuple) and isinstance(again, tuple):
        for index, (left, right) in enumerate(zip_longest(recorded, again)):
            yield from differences(left, right, f"{path}[{index}]")
    elif isinstance(recorded, Mapping) and isinstance(again, Mapping):
        for key in sorted(recorded.keys() | again.keys(), key=str):
            yield from differences(recorded.get(key), again.get(key), f"{path}[{key}]")
    else:
        yield FieldDifference(path=path, recorded=recorded, again=again)


def _field_differences(
    plan: PlanDecided, states: Mapping[int, PoolState], policy: Policy[PoolState] | None
) -> tuple[FieldDifference, ...]:
    if policy is None:
        return (FieldDifference(path="service", recorded=plan.service, again="no such planner"),)
    state = states.get(plan.based_on)
    if state is None:
        allowed = f"{min(states)} to {max(states)}"
        return (FieldDifference(path="based_on", recorded=plan.based_on, again=allowed),)
    again, _, _ = split(policy.decide(state, plan.commands, plan.now_s))
    if again != plan.events:
        with contextlib.suppress(TooLarge):  # then the record holds the part of it that fits into one message
            again = fitted(replace(plan, events=again), "", policy)[0].events
    return tuple(differences(plan.events, again, "events"))


# --- another policy -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherDecision:
    """One recorded decision that another policy decides differently on the same state.

    Of admission: "admitted" or "rejected" by job; of the allocator: GPUs by job, as 4 or "4 + 2 of other types". Only
    jobs that differ are listed.
    """

    sequence: int
    now_s: float
    recorded: Mapping[str, object]
    other: Mapping[str, object]


def other_decisions(entries: tuple[Entry, ...], from_sequence: int, policy: Policy[Any]) -> Iterator[OtherDecision]:
    """The recorded decisions of this service after `from_sequence` that `policy` decides differently."""
    state = policy.start(PoolState())
    since_plan = {0: state}
    for entry in entries:
        plan = entry.message
        if isinstance(plan, PlanDecided):
            retaken = plan.service == policy.service and entry.sequence > from_sequence
            if retaken and plan.based_on in since_plan:
                basis = since_plan[plan.based_on]
                again = policy.decide(basis, plan.commands, plan.now_s)
                differing = _differing(_by_job(plan.events), _by_job(again), policy.pool(basis))
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


def _by_job(events: tuple[Any, ...]) -> dict[str, object]:
    """Answers of admission, or GPUs, by job."""
    by_job: dict[str, object] = {}
    for event in events:
        match event:
            case JobAdmitted(job_id=job_id):
                by_job[job_id] = "admitted"
            case JobRejected(job_id=job_id):
                by_job[job_id] = "rejected"
            case AllocationDecided():
                by_job |= {job_id: _gpus(event, job_id) for job_id in event.num_gpus_by_job}
            case _:
                pass
    return by_job


def _gpus(event: AllocationDecided, job_id: str) -> int | str:
    """Its share, and how many GPUs hold its virtual nodes if those of other types join it."""
    share, mix = event.num_gpus_by_job[job_id], event.virtual_nodes_by_type.get(job_id)
    return share if mix is None else f"{share} + {sum(map(len, mix.values())) - share} of other types"


def _differing(
    recorded: Mapping[str, object], other: Mapping[str, object], pool: PoolState
) -> dict[str, tuple[object, object]]:
    """Both decisions on the jobs on which they differ: arriving jobs, and the shares of admitted ones.

    A job that is being profiled is left out: other policies have no profiling runs.
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
