"""A job on each GPU type of a folded pool, and how its virtual nodes are best split over them. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.single_gpu_step_times import counts_to_measure
from elasticflow.shared.scheduling.heterogeneous.measured_step_times import JobStepTimes, job_step_times
from elasticflow.shared.scheduling.heterogeneous.virtual_node_split import (
    GpusOfType,
    TooLittleMemory,
    split_virtual_nodes,
)
from elasticflow.shared.state.gpu_types import (
    accepts,
    as_recorded,
    parts,
    profiling_failure,
    spec_on,
    submitted_spec,
    type_name,
)
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState


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
    """num_gpus: of the pool's live nodes. failure: why a profiling run failed there; "" if none did."""

    gpu_type: str
    num_gpus: int
    iterations_per_s: Mapping[int, float]  # by number of GPUs
    steps: tuple[StepPoint, ...]  # none if the speed of one GPU is unknown
    failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitView:
    """The recommended split over some GPUs. virtual_nodes: of each GPU that has some, by type.

    alone_s: the step on each type alone, None if its memory is too small. speedup: over the best of them; None if there
    is none. measured_step_s: of a job of this profile that trains so now, or has been profiled so; else None.
    """

    num_gpus: Mapping[str, int]
    virtual_nodes: Mapping[str, tuple[int, ...]]
    step_s: float
    alone_s: Mapping[str, float | None]
    speedup: float | None
    measured_step_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TypesView:
    """num_virtual_nodes: of the job; None if no step time is measured. obstacle: why there is no split, else ""."""

    training_function: str
    global_batch_size: int
    num_virtual_nodes: int | None
    types: tuple[TypeView, ...]
    split: SplitView | None
    obstacle: str


def types_view(state: PoolState, spec: JobSpec, num_gpus_by_type: Mapping[str, int] | None = None) -> TypesView:
    """Of a submitted spec. num_gpus_by_type: over which to split; None: all live GPUs.

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
    gpu_type = type_name(state, recorded)
    curve = state.curves.get(spec_on(state, spec, gpu_type).measured_key)
    return TypeView(
        gpu_type=gpu_type,
        num_gpus=num_gpus,
        iterations_per_s={} if curve is None else dict(sorted(curve.iterations_per_s.items())),
        steps=() if times is None or recorded not in times.by_type else _steps(times, recorded),
        failure=profiling_failure(state, spec, gpu_type),
    )


def _steps(times: JobStepTimes, recorded: str) -> tuple[StepPoint, ...]:
    points = list[StepPoint]()
    for count in counts_to_measure(times.num_virtual_nodes):
        num_samples, step_s, measured = times.at(recorded, count)
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
        measured = ", ".join(known)
        raise BadSettings((f"no speed is known on {', '.join(unknown)}: name types on which it is, here {measured}",))
    gpus = [
        GpusOfType(name=gpu_type, num_gpus=num_gpus, step_s_V=times.step_s_V(known[gpu_type]))
        for gpu_type, num_gpus in num_gpus_by_type.items()
    ]
    split = split_virtual_nodes(gpus, times.num_virtual_nodes, times.communication)
    if isinstance(split, TooLittleMemory):
        return split
    possible_s = [alone_s for alone_s in split.alone_s.values() if alone_s is not None]
    return SplitView(
        num_gpus=num_gpus_by_type,
        virtual_nodes=split.counts,
        step_s=split.step_s,
        alone_s=split.alone_s,
        speedup=min(possible_s) / split.step_s if possible_s else None,
        measured_step_s=_measured_step_s(state, spec, split.counts),
    )


def _measured_step_s(state: PoolState, spec: JobSpec, counts: Mapping[str, tuple[int, ...]]) -> float | None:
    """On one type, the profile has divided the virtual nodes evenly; on several, a job must train so now."""
    if len(counts) == 1:
        ((gpu_type, on_each),) = counts.items()
        curve = state.curves.get(spec_on(state, spec, gpu_type).measured_key)
        rate = None if curve is None else curve.iterations_per_s.get(len(on_each))
        return 1.0 / rate if rate else None
    wanted = Counter((gpu_type, count) for gpu_type, on_each in counts.items() for count in on_each)
    for job in state.live_jobs.values():
        same_profile = submitted_spec(job).measured_key == spec.measured_key
        if same_profile and job.training and job.iterations_per_s and _carried(state, job) == wanted:
            return 1.0 / job.iterations_per_s
    return None


def _carried(state: PoolState, job: Job) -> Counter[tuple[str, int]]:
    """GPUs of a job by type and number of virtual nodes; none if the division is even."""
    return Counter(
        (type_name(state, as_recorded(state, state.nodes[gpu.node_id].gpu_type)), count)
        for gpu, count in zip(job.gpus, job.virtual_nodes_by_rank, strict=False)
        if count
    )
