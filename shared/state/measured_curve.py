"""What is measured of a throughput profile. `fold/profiles.py` keeps it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from elasticflow.shared.messages.gpus import GpuRange
from elasticflow.shared.messages.measurements import SingleGpuStepTimes, VirtualNodeCount
from elasticflow.shared.state.job import NO_SPEEDS, SpeedStatistics

UNKNOWN_PLACE = 0.5
"""A promise counts on at most this part of a speed on GPUs that are connected better, where no larger number bounds
it: less than half as many GPUs do, so that promises do not use the number before a job has trained there."""


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
    # what connects the block that each of iterations_per_s holds for; a configured one has none, it holds for any block
    counted_level: Mapping[int, int] = field(default_factory=dict[int, int])

    def speed_at(self, num_gpus: int, level: int) -> float | None:
        """Iterations/s on a block that is connected so, never too high; None if only better places are known."""
        if (measured := self.at_level.get(level, {}).get(num_gpus)) is not None:
            return measured
        return self.iterations_per_s.get(num_gpus) if self.counted_level.get(num_gpus, level) >= level else None

    def speeds_at(self, levels: Sequence[int], unknown: int) -> Mapping[int, float]:
        """The speeds to count on by number of GPUs. levels: of the blocks of 1, 2, 4, ... GPUs; unknown: of others."""
        sizes = {num_gpus: num_gpus.bit_length() - 1 for num_gpus in sorted(self.iterations_per_s)}
        level_of = {each: levels[size] if size < len(levels) else unknown for each, size in sizes.items()}
        known = {each: self.speed_at(each, level) for each, level in level_of.items()}
        found = dict[int, float]()
        for num_gpus, speed in known.items():
            larger = None if 2 * num_gpus in self.bounded else known.get(2 * num_gpus)
            found[num_gpus] = self.bound(num_gpus, found.get(num_gpus // 2), larger) if speed is None else speed
        return found

    def bound(self, num_gpus: int, half_as_many: float | None, twice_as_many: float | None) -> float:
        """The least speed of so many GPUs, of which only better places are known, between those of other numbers.

        Half of the GPUs of a larger block are at least half as fast.
        """
        rates = [rates[num_gpus] for rates in self.at_level.values() if num_gpus in rates]
        if num_gpus in self.iterations_per_s and (num_gpus not in self.bounded or not rates):
            rates.append(self.iterations_per_s[num_gpus])
        if twice_as_many is not None:
            return min(*rates, twice_as_many / 2)
        return min(min(rates) * UNKNOWN_PLACE, math.inf if half_as_many is None else half_as_many)

    def fastest(self, num_gpus: int) -> float | None:
        """The highest speed of so many GPUs at any place, counted or measured; None if there is none."""
        tables = (self.iterations_per_s, *self.at_level.values())
        return max((rates[num_gpus] for rates in tables if num_gpus in rates), default=None)

    def is_probed_by(self, num_gpus: int) -> bool:
        """Whether a job on so many GPUs is the scaling probe: their speed is not known yet."""
        return num_gpus == self.probed_to and num_gpus not in self.iterations_per_s

    def is_bounded(self, num_gpus: int, level: int) -> bool:
        """Whether of so many GPUs only better places than a block that is connected so are known."""
        if num_gpus not in self.iterations_per_s:
            return False
        return num_gpus in self.bounded or self.speed_at(num_gpus, level) is None

    @property
    def complete(self) -> bool:
        """The profiling run is over: promises may use the curve."""
        return self.probed_to > 0
