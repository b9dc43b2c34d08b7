"""Throughput profiles of a folded pool as rows, and a job on each of its GPU types. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.measurements import VirtualNodeCount, counts_to_measure
from elasticflow.shared.scheduling.heterogeneous.measured_step_times import (
    JobStepTimes,
    job_step_times,
    mixed_steps,
    placed_step_s,
    unmeasured_step_times,
)
from elasticflow.shared.scheduling.heterogeneous.step_times import CommunicationTimes, StepTimes
from elasticflow.shared.scheduling.heterogeneous.virtual_node_split import TooLittleMemory, split_virtual_nodes
from elasticflow.shared.state.gpu_types import (
    accepts,
    large_enough_types,
    part_of_type,
    parts,
    profiling_failure,
    spec_on,
    type_name,
)
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState, largest_level, spec_of

# --- type views ----------------------------------------------------------------------------------------
# A job on each GPU type of a folded pool, and how its virtual nodes are best split over them. Pure.


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """A step of one GPU. measured: or between two measured numbers of virtual nodes; else predicted."""

    num_virtual_nodes: int
    num_samples: int
    step_s: float
    samples_per_s: float
    measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeView:
    """num_gpus: of the pool's live nodes. failure: why a profiling run failed there; "" if none did.

    predicted_from: the type from which steps are predicted by the speeds of other profiles, since no speed of this one
    is known here; else "". communication_s: of a step, by number of GPUs. communication_measured: else predicted.
    """

    gpu_type: str
    num_gpus: int
    iterations_per_s: Mapping[int, float]  # by number of GPUs
    steps: tuple[StepPoint, ...]  # none if the speed of one GPU is unknown and cannot be predicted
    failure: str
    predicted_from: str
    communication_s: Mapping[int, float]
    communication_measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitView:
    """The recommended split over some GPUs. virtual_nodes: of each GPU that has some, by type.

    alone_s: the step on each type alone, None if its memory is too small. speedup: over the best of them; None if there
    is none. measured_step_s: of jobs of this profile that trained so, or have been profiled so; else None.
    correction: of the predicted step, by what other mixes took; 1.0 without any.
    """

    num_gpus: Mapping[str, int]
    virtual_nodes: Mapping[str, tuple[int, ...]]
    step_s: float
    alone_s: Mapping[str, float | None]
    speedup: float | None
    measured_step_s: float | None
    correction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TypesView:
    """num_virtual_nodes: of the job; None if no step time is measured. obstacle: why there is no split, else ""."""

    training_function: str
    global_batch_size: int
    num_virtual_nodes: int | None
    types: tuple[TypeView, ...]
    split: SplitView | None
    obstacle: str


class PredictedSteps(NamedTuple):
    """The predicted steps of a job that GPUs of other types have joined, and of its share alone."""

    mixed_s: float
    alone_s: float


def predicted_steps(state: PoolState, job: Job) -> PredictedSteps | None:
    """The predicted steps; None if no other GPUs have joined the job, or if its profile does not know both steps."""
    mixed_s, curve = placed_step_s(state, job), state.curves.get(spec_of(job).profile_key)
    alone = curve.iterations_per_s.get(len(job.own_gpus)) if curve is not None else None
    return PredictedSteps(mixed_s, 1.0 / alone) if mixed_s is not None and alone else None


def types_view(state: PoolState, spec: JobSpec, num_gpus_by_type: Mapping[str, int] | None = None) -> TypesView:
    """The view of a submitted spec. num_gpus_by_type: over which to split; None: all live GPUs.

    Raises BadSettings for a type on which the speed of one GPU is unknown.
    """
    times = job_step_times(state, spec)
    split = None if times is None else _split(state, spec, times, num_gpus_by_type)
    unmeasured = "no steps of parts of the batch are measured: a profiling run in a pool of several types measures them"
    return TypesView(
        training_function=spec.training_function,
        global_batch_size=spec.global_batch_size,
        num_virtual_nodes=None if times is None else times.num_virtual_nodes,
        types=tuple(
            _type_view(state, spec, recorded, part.num_gpus, times)
            for recorded, part in parts(state).items()
            if accepts(state, spec, recorded)
        ),
        split=split if isinstance(split, SplitView) else None,
        obstacle=unmeasured if split is None else str(split) if isinstance(split, TooLittleMemory) else "",
    )


def _type_view(state: PoolState, spec: JobSpec, recorded: str, num_gpus: int, times: JobStepTimes | None) -> TypeView:
    gpu_type, failure = type_name(state, recorded), profiling_failure(state, spec, type_name(state, recorded))
    curve = state.curves.get(spec_on(state, spec, gpu_type).measured_key)
    known = None if times is None else times.by_type.get(recorded)
    predicted = None
    if times is not None and known is None and not failure:
        predicted = unmeasured_step_times(state, spec.profile_owner, times, recorded)
    base, steps = ("", known) if predicted is None else (type_name(state, predicted[0]), predicted[1])
    communication = CommunicationTimes() if times is None or known is None else times.communication[recorded]
    return TypeView(
        gpu_type=gpu_type,
        num_gpus=num_gpus,
        iterations_per_s={} if curve is None else dict(sorted(curve.iterations_per_s.items())),
        steps=() if times is None or steps is None else _steps(times, steps),
        failure=failure,
        predicted_from=base,
        communication_s=dict(zip(communication.num_workers_P, communication.communication_s_P, strict=True)),
        communication_measured=communication.measured,
    )


def _steps(times: JobStepTimes, steps: StepTimes) -> tuple[StepPoint, ...]:
    points = list[StepPoint]()
    for count in counts_to_measure(times.num_virtual_nodes):
        num_samples, step_s, measured = steps.at(times.samples(count))
        points.append(
            StepPoint(
                num_virtual_nodes=count,
                num_samples=num_samples,
                step_s=step_s,
                samples_per_s=num_samples / step_s,
                measured=measured,
            )
        )
    return tuple(points)


def _split(
    state: PoolState, spec: JobSpec, times: JobStepTimes, num_gpus_by_type: Mapping[str, int] | None
) -> SplitView | TooLittleMemory:
    if num_gpus_by_type is None:
        live = parts(state)
        num_gpus_by_type = {type_name(state, recorded): live[recorded].num_gpus for recorded in times.by_type}
    known = {type_name(state, recorded): recorded for recorded in times.by_type}
    if unknown := [gpu_type for gpu_type in num_gpus_by_type if gpu_type not in known]:
        raise BadSettings(tuple(_no_speed_on(state, spec, gpu_type, known) for gpu_type in unknown))
    gpus = [times.gpus(known[gpu_type], num_gpus, name=gpu_type) for gpu_type, num_gpus in num_gpus_by_type.items()]
    split = split_virtual_nodes(gpus, times.num_virtual_nodes)
    if isinstance(split, TooLittleMemory):
        return split
    possible_s = [alone_s for alone_s in split.alone_s.values() if alone_s is not None]
    counts = {known[gpu_type]: on_each for gpu_type, on_each in split.counts.items()}
    allowed = replace(spec, mixed_gpu_types=True)  # shown even if only `--mixed` lets the job train so
    steps = mixed_steps(state, allowed, next(iter(counts))) if len(counts) > 1 else None
    step_s = split.step_s if steps is None else steps.predicted_step_s(counts)
    return SplitView(
        num_gpus=num_gpus_by_type,
        virtual_nodes=split.counts,
        step_s=step_s,
        alone_s=split.alone_s,
        speedup=min(possible_s) / step_s if possible_s else None,
        measured_step_s=_profiled_step_s(state, spec, counts) if steps is None else steps.measured_step_s(counts),
        correction=1.0 if steps is None else steps.correction,
    )


def _no_speed_on(state: PoolState, spec: JobSpec, gpu_type: str, known: Iterable[str]) -> str:
    failure = profiling_failure(state, spec, gpu_type)
    why = f"; its profiling run failed there: {failure}" if failure else ""
    return f"--mix: no speed of {spec.training_function} is known on {gpu_type}, only on {', '.join(known)}{why}"


def _profiled_step_s(state: PoolState, spec: JobSpec, counts: Mapping[str, tuple[int, ...]]) -> float | None:
    """The profiled step on one type, whose profile has divided the virtual nodes evenly; None on several."""
    if len(counts) > 1:
        return None
    ((recorded, on_each),) = counts.items()
    curve = state.curves.get(spec_on(state, spec, type_name(state, recorded)).measured_key)
    rate = None if curve is None else curve.iterations_per_s.get(len(on_each))
    return 1.0 / rate if rate else None


# --- profile views -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePoint:
    """speedup: over the fewest GPUs on which it runs; efficiency: speedup for each GPU, from 0 to 1."""

    num_gpus: int
    iterations_per_s: float
    samples_per_s: float
    speedup: float
    efficiency: float
    is_in_range: bool
    measured_at_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileView:
    """All measurements of a profile on one GPU type. gpu_range: of the job. complete: no number of GPUs is left to
    measure. virtual_nodes: of its bitwise jobs; None: the default, or as each code says.
    gpu_type: "" in a pool of one type. on_other_types: of those that the job accepts."""

    profile_key: str
    global_batch_size: int
    gpu_range: str
    complete: bool
    dataset_size: int | None
    points: tuple[ProfilePoint, ...]  # by number of GPUs
    virtual_nodes: VirtualNodeCount | None = None
    gpu_type: str = ""
    on_other_types: tuple["ProfileView", ...] = ()


def profile_view(state: PoolState, spec: JobSpec) -> ProfileView | None:
    """The profile of a submitted spec, on each type that it accepts. None if nothing has been measured."""
    if len(state.gpu_types) <= 1:
        return _on_type(state, spec_on(state, spec, spec.gpu_type))
    views = list[ProfileView]()
    for recorded in large_enough_types(state, spec):
        gpu_type = type_name(state, recorded)
        view = _on_type(part_of_type(state, gpu_type), spec_on(state, spec, gpu_type))
        if view is not None:
            views.append(replace(view, gpu_type=gpu_type))
    return replace(views[0], on_other_types=tuple(views[1:])) if views else None


def _on_type(state: PoolState, spec: JobSpec) -> ProfileView | None:
    """state: the part of the type."""
    whole, own = state.curves.get(spec.measured_key), state.curves.get(spec.profile_key)
    if whole is None or not whole.iterations_per_s:
        return None
    rates = sorted(whole.iterations_per_s.items())
    first, slowest = next(((num_gpus, rate) for num_gpus, rate in rates if rate), (1, 1.0))
    return ProfileView(
        profile_key=spec.measured_key,
        global_batch_size=spec.global_batch_size,
        gpu_range=str(spec.gpu_range),
        complete=own is not None and own.complete and largest_level(state, spec) <= own.probed_to,
        dataset_size=whole.dataset_size,
        points=tuple(
            ProfilePoint(
                num_gpus=num_gpus,
                iterations_per_s=rate,
                samples_per_s=rate * spec.global_batch_size,
                speedup=rate / slowest,
                efficiency=rate / slowest * first / num_gpus,
                is_in_range=spec.gpu_range.allows(num_gpus),
                measured_at_s=whole.measured_at_s.get(num_gpus),
            )
            for num_gpus, rate in rates
        ),
        virtual_nodes=whole.virtual_nodes,
    )
