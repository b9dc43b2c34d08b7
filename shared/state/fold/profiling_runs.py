"""The fold of profiling runs: on which GPU type each job is measured, and on which types a profile failed.

A failure belongs to the profile, so later jobs do not repeat it. It counts until the profile is measured there. If no
other type is left, it is not the type's fault: then the failures of all types that the job accepts are forgotten.
"""

from collections.abc import Mapping
from dataclasses import replace

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import events
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.state.fold.jobs import MAX_EXPLANATION, scheduling_event, with_job
from elasticflow.shared.state.fold.profiles import NO_CURVE, with_curve, with_profile
from elasticflow.shared.state.gpu_types import (
    large_enough_types,
    possible_types,
    profiling_failure,
    spec_on,
    submitted_spec,
)
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState, spec_of


def with_profiling_on(state: PoolState, profiled_on: Mapping[str, str]) -> PoolState:
    """The pool with these profiling runs on GPUs of these types, by job. Their workers on other types must stop."""
    for job_id, gpu_type in profiled_on.items():
        job = state.live_jobs.get(job_id)
        spec = None if job is None else spec_on(state, spec_of(job), gpu_type)
        if job is not None and spec is not None and spec is not job.spec:
            moved = fast_replace(
                job, spec=spec, submitted_spec=submitted_spec(job), broken=job.broken or bool(job.gpus)
            )
            state = fast_replace(with_profile(state, spec), live_jobs=state.live_jobs.set(job_id, moved))
    return state


def profiling_failed(state: PoolState, job: Job, event: events.ProfilingFailed, sequence: int) -> PoolState:
    """The job goes on without this type: its workers there must stop, and their generation reports no more."""
    failed, spec = spec_on(state, submitted_spec(job), event.gpu_type), spec_of(job)
    is_there = spec.gpu_type == failed.gpu_type  # or it has left the type before its workers failed
    job = fast_replace(
        job,
        broken=job.broken or (is_there and bool(job.gpus)),
        void_generation=max(job.void_generation, event.generation),
        restarts=0 if is_there else job.restarts,
        nodes_lost_at_start=() if is_there else job.nodes_lost_at_start,
        unwitnessed_starts=() if is_there else job.unwitnessed_starts,
        ended_starts=() if is_there else job.ended_starts,
    )
    return scheduling_event(with_job(_with_failure(state, failed, event.error[:MAX_EXPLANATION]), job), sequence)


def with_failures_forgotten(state: PoolState, spec: JobSpec) -> PoolState:
    """Forget the failures of a submitted spec, on all types that it accepts and that have enough GPUs."""
    for gpu_type in large_enough_types(state, spec):
        if profiling_failure(state, spec, gpu_type):
            state = _with_failure(state, spec_on(state, spec, gpu_type), "")
    return state


def with_another_attempt(state: PoolState, spec: JobSpec) -> PoolState:
    """A submitted spec that no type is left for is measured again."""
    return state if possible_types(state, spec) else with_failures_forgotten(state, spec)


def _with_failure(state: PoolState, spec: JobSpec, failure: str) -> PoolState:
    curve = state.curves.get(spec.measured_key, NO_CURVE)
    return with_curve(state, spec.measured_key, replace(curve, failure=failure))
