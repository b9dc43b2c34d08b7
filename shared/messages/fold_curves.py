"""The fold of what is known of speeds. Part of `lifecycle`.

What is measured of a profile is kept whole under `JobSpec.measured_key`, and its part within a range, for the jobs
that have one, under their `profile_key`. So whoever plans looks up one curve and need not know of ranges: sizes
outside are sizes on which the job does not run.
"""

import math
from dataclasses import replace

from shared.messages import events
from shared.messages.changed import changed
from shared.messages.gpu_range import GpuRange
from shared.messages.job import JobSpec
from shared.messages.job_state import Job
from shared.messages.pool_state import MeasuredCurve, PoolState, spec_of

_NO_CURVE = MeasuredCurve(iterations_per_s={})


def configured_curves(state: PoolState, event: events.PoolConfigured) -> PoolState:
    for profile_key, table in event.config.curves.items():
        known = state.curves.get(profile_key, _NO_CURVE)
        at_s = {num_gpus: max(event.at_s, known.measured_at_s.get(num_gpus, 0.0)) for num_gpus in table}
        at_s = {**known.measured_at_s, **at_s}
        curve = replace(known, iterations_per_s=table, measured_at_s=at_s, tried_to=math.inf)
        state = with_curve(state, profile_key, curve)
    return state


def measured(state: PoolState, event: events.ThroughputMeasured, sequence: int) -> PoolState:
    curve = state.curves.get(event.profile_key, _NO_CURVE)
    if event.at_s <= curve.measured_at_s.get(event.num_gpus, -1.0):
        return state
    curve = replace(
        curve,
        iterations_per_s={**curve.iterations_per_s, event.num_gpus: event.iterations_per_s},
        measured_at_s={**curve.measured_at_s, event.num_gpus: event.at_s},
        dataset_size=curve.dataset_size if event.dataset_size is None else event.dataset_size,
    )
    return changed(with_curve(state, event.profile_key, curve), scheduling_event_sequence=sequence)


def profile_completed(state: PoolState, event: events.ProfileCompleted) -> PoolState:
    """No scheduling event: the allocator says it together with an allocation that knows it."""
    curve = state.curves.get(event.profile_key, _NO_CURVE)
    tried_to = math.inf if event.measured_to is None else event.measured_to
    curve = replace(curve, iterations_per_s=event.iterations_per_s, tried_to=tried_to)
    return with_curve(state, event.profile_key, curve)


def tried(state: PoolState, job: Job, num_gpus: int, at_s: float) -> PoolState:
    """A job goes to a number of GPUs of which its curve knows nothing. Nobody does so again."""
    profile_key = spec_of(job).profile_key
    curve = state.curves.get(profile_key, _NO_CURVE)
    return with_curve(state, profile_key, replace(curve, tried_to=num_gpus, tried_at_s=at_s))


def with_speed(state: PoolState, job: Job) -> PoolState:
    """What the reports of a job that ended say of the speed of others of its profile."""
    curve = state.curves.get(job.spec.measured_key) if job.spec is not None and job.speed.count else None
    if job.spec is None or curve is None:
        return state
    return with_curve(state, job.spec.measured_key, replace(curve, speed=curve.speed.and_log(job.speed.mean)))


def with_range(state: PoolState, spec: JobSpec) -> PoolState:
    """The state that has a curve for the range of a job, if it has a range: of those that are to be judged, too."""
    if spec.profile_key in state.curves or spec.profile_key == spec.measured_key:
        return state
    whole = state.curves.get(spec.measured_key, _NO_CURVE)
    state = with_curve(state, spec.measured_key, replace(whole, parts=(*whole.parts, spec.gpu_range)))
    part = state.curves[spec.profile_key]
    wider = (wide.part_of(spec.measured_key) for wide in whole.parts if wide.contains(spec.gpu_range))
    tried_to = max((state.curves[key].tried_to for key in wider), default=0.0)
    if part.iterations_per_s and tried_to:
        state = changed(state, curves=state.curves.set(spec.profile_key, replace(part, tried_to=tried_to)))
    return state


def with_curve(state: PoolState, profile_key: str, curve: MeasuredCurve) -> PoolState:
    """What is known of a profile now, and with it of its parts."""
    curves = state.curves.set(profile_key, curve)
    for gpu_range in curve.parts:
        part_key = gpu_range.part_of(profile_key)
        known = curves.get(part_key, _NO_CURVE)
        curves = curves.set(part_key, _part(curve, gpu_range, known))
    return changed(state, curves=curves)


def _part(whole: MeasuredCurve, gpu_range: GpuRange, known: MeasuredCurve) -> MeasuredCurve:
    """A part may be known to its end before the whole is; where the whole ends below it, it has to be measured too."""
    rates = {num_gpus: rate for num_gpus, rate in whole.iterations_per_s.items() if gpu_range.holds(num_gpus)}
    return replace(
        whole,
        iterations_per_s=rates,
        tried_to=max(known.tried_to, whole.tried_to if rates else 0.0),
        tried_at_s=max(known.tried_at_s, whole.tried_at_s),
        parts=(),
    )
