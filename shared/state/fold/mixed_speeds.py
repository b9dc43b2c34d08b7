"""The fold of the speeds of jobs that GPUs of other types joined. Part of `ledger_fold`."""

from dataclasses import replace

from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import events
from elasticflow.shared.state.fold.jobs import scheduling_event, with_job
from elasticflow.shared.state.fold.profiles import with_curve
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.measured_curve import MeasuredMix
from elasticflow.shared.state.placed_mix import placed_mix
from elasticflow.shared.state.pool import PoolState, spec_of

MAX_MIXES = 16  # of a profile on a type
SPEED_CHANGE = 0.1  # a speed that is so much off the known one corrects it
CORRECT_EVERY_S = 10.0  # the same mix


def with_measured_mix(state: PoolState, job: Job, event: events.JobProgressed) -> PoolState:
    """Keep the speed of the mix with the profile: a new one as it is, a known one half-way to the new speed."""
    key, measured = spec_of(job).measured_key, event.iterations_per_s
    curve = state.curves.get(key)
    if curve is None or not measured or not job.virtual_nodes_by_rank or not _is_settled(job, event):
        return state
    mix = placed_mix(state, job)
    known = next((each for each in curve.mixes if each.virtual_nodes == mix), None)
    if known is not None:
        is_close = abs(measured - known.iterations_per_s) <= SPEED_CHANGE * known.iterations_per_s
        if is_close or event.at_s - known.at_s < CORRECT_EVERY_S:
            return state
        measured = (measured + known.iterations_per_s) / 2
    newest = MeasuredMix(virtual_nodes=mix, iterations_per_s=measured, at_s=event.at_s)
    others = tuple(each for each in curve.mixes if each is not known)
    return with_curve(state, key, replace(curve, mixes=(*others, newest)[-MAX_MIXES:]))


def _is_settled(job: Job, event: events.JobProgressed) -> bool:
    """Whether the job trains with GPUs of other types, and its speed counts."""
    return bool(job.num_added_gpus and job.own_gpus) and job.has_settled(event.at_s)


def with_slower_mix(state: PoolState, job: Job, event: events.JobProgressed, sequence: int) -> PoolState:
    """Mark a job that GPUs of other types slow down, by its curve on its own GPUs; the allocator takes them away."""
    curve = state.curves.get(spec_of(job).profile_key)
    alone = curve.iterations_per_s.get(len(job.own_gpus)) if curve is not None else None
    if not alone or event.iterations_per_s is None or not _is_settled(job, event) or event.iterations_per_s >= alone:
        return state
    return scheduling_event(with_job(state, fast_replace(job, slower_when_mixed=True)), sequence)
