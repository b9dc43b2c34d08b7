"""Throughput profiles of a folded pool as rows of plain values, for tables and JSON. Pure."""

from dataclasses import dataclass, replace

from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.state.gpu_types import large_enough_types, part_of_type, spec_on, type_name
from elasticflow.shared.state.pool import PoolState, largest_level


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
    measure. gpu_type: "" in a pool of one type. on_other_types: of those that the job accepts."""

    profile_key: str
    global_batch_size: int
    gpu_range: str
    complete: bool
    dataset_size: int | None
    points: tuple[ProfilePoint, ...]  # by number of GPUs
    gpu_type: str = ""
    on_other_types: tuple["ProfileView", ...] = ()


def profile_view(state: PoolState, spec: JobSpec) -> ProfileView | None:
    """Of a submitted spec, on each type that it accepts. None if nothing has been measured."""
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
    )
