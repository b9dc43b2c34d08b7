"""What each tenant was promised, by GPU type. Quotas count over all types."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What admission promised a tenant within one minute, or rejected. at_s: the time of the last one.

    gpu_seconds: on all types, for quotas count so. on_other_types: its parts on other types than the first.
    """

    at_s: float
    gpu_seconds: float
    num_jobs: int = 1
    on_other_types: Mapping[str, float] = field(default_factory=dict[str, float])

    @staticmethod
    def on(gpu_type: str, gpu_seconds: float, at_s: float, *, num_jobs: int = 1) -> "Usage":
        """All of it on one type, as recorded."""
        on_other_types = {gpu_type: gpu_seconds} if gpu_type and gpu_seconds else {}
        return Usage(at_s=at_s, gpu_seconds=gpu_seconds, num_jobs=num_jobs, on_other_types=on_other_types)


def gpu_hours_by_type(usage: Iterable[Usage], first_type: str) -> dict[str, float]:
    """The GPU-hours on each type that has some, by its name, the pool's first type first."""
    used = tuple(usage)
    hours = {first_type: sum(each.gpu_seconds for each in used) / 3_600.0}
    for each in used:
        for gpu_type, gpu_seconds in each.on_other_types.items():
            hours[gpu_type] = hours.get(gpu_type, 0.0) + gpu_seconds / 3_600.0
            hours[first_type] -= gpu_seconds / 3_600.0
    return {gpu_type: spent for gpu_type, spent in hours.items() if spent > 1e-9}
