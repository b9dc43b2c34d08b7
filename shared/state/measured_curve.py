"""What is measured of a throughput profile. `fold/profiles.py` keeps it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticflow.shared.messages.gpu_limits import GpuRange
from elasticflow.shared.messages.measurements import SingleGpuStepTimes, VirtualNodeCount
from elasticflow.shared.state.job import NO_SPEEDS, SpeedStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMix:
    """The speed of a job on GPUs of several types. virtual_nodes: of each GPU, by recorded type."""

    virtual_nodes: Mapping[str, tuple[int, ...]]
    iterations_per_s: float
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCurve:
    """The scaling curve of a profile, as far as it is measured: iterations/s by number of GPUs.

    probed_to: the most GPUs that were measured or probed; inf: more would not help; 0: the profiling run is not over.
    probed_at_s: when a job last began a scaling probe.
    single_gpu, one_virtual_node_s (by number of GPUs): measured in a pool with several GPU types.
    virtual_nodes: of the bitwise jobs of this profile, the same on all types; None: the default, or as each code says.
    mixes: of jobs of this profile and type that GPUs of other types joined, the newest.
    failure: why the profiling run failed on this GPU type, so that jobs of the profile do not run there; else "".
    """

    iterations_per_s: Mapping[int, float]
    measured_at_s: Mapping[int, float] = field(default_factory=dict[int, float])  # by number of GPUs
    dataset_size: int | None = None
    single_gpu: SingleGpuStepTimes | None = None
    one_virtual_node_s: Mapping[int, float] = field(default_factory=dict[int, float])
    virtual_nodes: VirtualNodeCount | None = None
    mixes: tuple[MeasuredMix, ...] = ()
    failure: str = ""
    probed_to: float = 0.0
    probed_at_s: float = -math.inf
    speed: SpeedStatistics = NO_SPEEDS  # of the jobs of this profile that ended
    parts: tuple[GpuRange, ...] = ()  # the ranges whose parts have keys of their own
    # of GPUs that are connected worse, or better, than the worst buddy block of their number: by level
    at_level: Mapping[int, Mapping[int, float]] = field(default_factory=dict[int, Mapping[int, float]])
    bounded: tuple[int, ...] = ()  # numbers of GPUs that were measured in better places only: a promise counts on less

    def fastest(self, num_gpus: int) -> float | None:
        """The highest speed of so many GPUs at any place, counted or measured; None if there is none."""
        tables = (self.iterations_per_s, *self.at_level.values())
        return max((rates[num_gpus] for rates in tables if num_gpus in rates), default=None)

    def is_probed_by(self, num_gpus: int) -> bool:
        """Whether a job on so many GPUs is the scaling probe: their speed is not known yet."""
        return num_gpus == self.probed_to and num_gpus not in self.iterations_per_s

    @property
    def complete(self) -> bool:
        """The profiling run is over: promises may use the curve."""
        return self.probed_to > 0
