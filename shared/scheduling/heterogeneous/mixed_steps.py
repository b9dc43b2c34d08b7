"""The steps of a job whose own GPUs are joined by idle ones of other types. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.scheduling.heterogeneous.measured_step_times import job_step_times
from elasticflow.shared.scheduling.heterogeneous.virtual_node_split import (
    GpusOfType,
    TooLittleMemory,
    split_virtual_nodes,
)
from elasticflow.shared.state.gpu_types import have_same_arithmetic, placed_mix, spec_on, submitted_spec, type_name
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.measured_curve import MeasuredMix
from elasticflow.shared.state.pool import PoolState, spec_of

Counts = Mapping[str, tuple[int, ...]]
"""The virtual nodes of each GPU, by recorded type."""

MAX_CORRECTION = 1.5  # of a prediction, or its inverse: a measurement that is further off has another cause


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSteps:
    """one_gpu: of each type, by recorded type; the job's own one and those that may join it.

    measured: mixes in which jobs of this profile have trained.
    """

    own: str
    num_virtual_nodes: int
    one_gpu: Mapping[str, GpusOfType]
    measured: tuple[MeasuredMix, ...] = ()

    @property
    def fastest_types_first(self) -> list[str]:
        """The types that may join it, by the step of one GPU with one virtual node, then by name."""
        others = (name for name in self.one_gpu if name != self.own)
        return sorted(others, key=lambda name: (self.one_gpu[name].step_s_V[0], name))

    def fastest(self, num_own: int, num_others: Mapping[str, int]) -> Counts | None:
        """The split over all own GPUs and some of the others; None if no other one shortens the step.

        An own GPU may get no virtual node, where the others are so fast: the job does not leave it.
        num_others: those that may join, by type.
        """
        available = {self.own: num_own, **{name: num for name, num in num_others.items() if num > 0}}
        types = [
            replace(self.one_gpu[name], num_gpus=num_gpus)
            for name, num_gpus in available.items()
            if name in self.one_gpu
        ]
        split = split_virtual_nodes(types, self.num_virtual_nodes, least_gain=0.0)
        if isinstance(split, TooLittleMemory) or not split.counts.keys() - {self.own}:
            return None
        own = split.counts.get(self.own, ())
        return {**split.counts, self.own: own + (0,) * (num_own - len(own))}

    def step_s(self, counts: Counts) -> float:
        """The step time as measured, or as predicted for a mix in which no job has trained."""
        return self.measured_step_s(counts) or self.predicted_step_s(counts)

    def measured_step_s(self, counts: Counts) -> float | None:
        """The measured step time; None for a mix in which no job of the profile has trained."""
        wanted = _without_order(counts)
        same = (mix for mix in self.measured if _without_order(mix.virtual_nodes) == wanted)
        return next((1.0 / mix.iterations_per_s for mix in same), None)

    def predicted_step_s(self, counts: Counts) -> float:
        """The solved step time, corrected by what the measured mixes took in comparison with their own predictions."""
        return self._solved_step_s(counts) * self.correction

    @property
    def correction(self) -> float:
        """The geometric mean of measured over predicted step, at most MAX_CORRECTION; 1 without a measured mix."""
        logs = [
            -math.log(mix.iterations_per_s * self._solved_step_s(mix.virtual_nodes))
            for mix in self.measured
            if mix.virtual_nodes.keys() <= self.one_gpu.keys()
        ]
        return min(max(math.exp(fmean(logs)), 1 / MAX_CORRECTION), MAX_CORRECTION) if logs else 1.0

    def _solved_step_s(self, counts: Counts) -> float:
        """The step time of the slowest GPU. A GPU without virtual nodes computes one of another GPU again."""
        num_workers = sum(map(len, counts.values()))
        return max(self.one_gpu[name].step_s(max(*each, 1), num_workers) for name, each in counts.items() if each)


def mixed_steps(state: PoolState, submitted: JobSpec, own: str) -> MixedSteps | None:
    """The steps of a job on its own recorded type; None if its step times are unknown or no other type may join it.

    In the bitwise mode only types with the same arithmetic may, unless the user allows others (docs/adr/0049).
    """
    times = job_step_times(state, submitted)
    if times is None:
        return None
    mixes_all = times.reproducible == "fast" or submitted.mixed_gpu_types
    allowed = [name for name in times.by_type if mixes_all or have_same_arithmetic(state, own, name)]
    if own not in allowed or len(allowed) == 1:
        return None
    return MixedSteps(
        own=own,
        num_virtual_nodes=times.num_virtual_nodes,
        one_gpu={name: times.gpus(name, 1) for name in allowed},
        measured=tuple(mix for name in times.by_type for mix in _mixes(state, submitted, name)),
    )


def placed_step_s(state: PoolState, job: Job) -> float | None:
    """The predicted step of a job that GPUs of other types have joined; None if none has, or if it is unknown."""
    steps = mixed_steps(state, submitted_spec(job), spec_of(job).gpu_type) if job.num_added_gpus else None
    if steps is None:
        return None
    mix = placed_mix(state, job)
    if not job.virtual_nodes_by_rank:  # survivors have divided them evenly
        each = -(-steps.num_virtual_nodes // len(job.gpus))
        mix = {gpu_type: (each,) * len(counts) for gpu_type, counts in mix.items()}
    return steps.step_s(mix)


def _mixes(state: PoolState, submitted: JobSpec, recorded_type: str) -> tuple[MeasuredMix, ...]:
    """The measured mixes of jobs whose own type this is."""
    curve = state.curves.get(spec_on(state, submitted, type_name(state, recorded_type)).measured_key)
    return () if curve is None else curve.mixes


def _without_order(counts: Counts) -> dict[str, list[int]]:
    return {name: sorted(each) for name, each in counts.items() if each}
