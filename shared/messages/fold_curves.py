"""The fold of what is known of speeds. Part of `lifecycle`.

What is measured of a profile is kept whole under `JobSpec.measured_key`, and its part within a range, for the jobs
that have one, under their `profile_key`. So whoever plans looks up one curve and need not know of ranges: sizes
outside are sizes on which the job does not run.
"""

from dataclasses import replace

from shared.messages import events
from shared.messages.changed import changed
from shared.messages.gpu_range import GpuRange
from shared.messages.job import JobSpec
from shared.messages.job_state import Job
from shared.messages.pool_state import MeasuredCurve, PoolState

_NO_CURVE = MeasuredCurve(iterations_per_s={})


def configured_curves(state: PoolState, event: events.PoolConfigured) -> PoolState:
    for profile_key, table in event.config.curves.items():
        known = state.curves.get(profile_key, _NO_CURVE)
        at_s = {num_gpus: max(event.at_s, known.measured_at_s.get(num_gpus, 0.0)) for num_gpus in table}
        at_s = {**known.measured_at_s, **at_s}
        curve = replace(known, iterations_per_s=table, measured_at_s=at_s, complete=True)
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
    curve = replace(curve, iterations_per_s=event.iterations_per_s, complete=True)
    return with_curve(state, event.profile_key, curve)


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
    if part.iterations_per_s and any(state.curves[key].complete for key in wider):
        state = changed(state, curves=state.curves.set(spec.profile_key, replace(part, complete=True)))
    return state


def with_curve(state: PoolState, profile_key: str, curve: MeasuredCurve) -> PoolState:
    """What is known of a profile now, and with it of its parts."""
    curves = state.curves.set(profile_key, curve)
    for gpu_range in curve.parts:
        part_key = gpu_range.part_of(profile_key)
        known = curves.get(part_key, _NO_CURVE)
        curves = curves.set(part_key, _part(curve, gpu_range, was_complete=known.complete))
    return changed(state, curves=curves)


def _part(whole: MeasuredCurve, gpu_range: GpuRange, *, was_complete: bool) -> MeasuredCurve:
    """A part may be known to its end before the whole is; where the whole ends below it, it has to be measured too."""
    rates = {num_gpus: rate for num_gpus, rate in whole.iterations_per_s.items() if gpu_range.holds(num_gpus)}
    return replace(
        whole,
        iterations_per_s=rates,
        complete=was_complete or (whole.complete and bool(rates)),
        parts=(),
    )
