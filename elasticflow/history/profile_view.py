"""Measured scaling curves as people look at them. Pure."""

from dataclasses import dataclass

from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.state.pool import PoolState, largest_level


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePoint:
    """speedup: over the fewest GPUs on which it runs; efficiency: of that, for each GPU, from 0 to 1."""

    num_gpus: int
    iterations_per_s: float
    samples_per_s: float
    speedup: float
    efficiency: float
    is_in_range: bool
    measured_at_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileView:
    """All that was measured of a profile. gpu_range: on which the job may run; complete: nothing is left to measure."""

    profile_key: str
    global_batch_size: int
    gpu_range: str
    complete: bool
    dataset_size: int | None
    points: tuple[ProfilePoint, ...]  # by number of GPUs


def profile_view(state: PoolState, spec: JobSpec) -> ProfileView | None:
    """None where nothing is known."""
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
