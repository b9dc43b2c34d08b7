"""The step times of a job by GPU type, and its communication, from the profiles of a pool. Pure.

A type without step times of its own is predicted from a measured one, by the ratio of their speeds on one GPU. Parts of
the batch that were not measured on a type are predicted from the type with the most measurements.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.measurements import SingleGpuStepTimes
from elasticflow.shared.scheduling.heterogeneous.step_times import CommunicationTimes, StepTimes, predicted_from
from elasticflow.shared.scheduling.heterogeneous.virtual_node_split import (
    GpusOfType,
    TooLittleMemory,
    split_virtual_nodes,
)
from elasticflow.shared.state.fold.profiles import readable_curves
from elasticflow.shared.state.gpu_types import (
    have_same_arithmetic,
    placed_mix,
    possible_types,
    spec_on,
    submitted_spec,
    type_name,
    type_of_profile,
)
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.measured_curve import MeasuredCurve, MeasuredMix
from elasticflow.shared.state.pool import PoolState, spec_of


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStepTimes:
    """num_virtual_nodes: into so many equal parts a split divides the global batch.

    reproducible: how the job adds these up.
    by_type: by recorded type, the first type first; those without a known speed on one GPU are missing.
    communication: by recorded type, of the same types.
    """

    num_virtual_nodes: int
    global_batch_size: int
    reproducible: Literal["bitwise", "fast"]
    by_type: Mapping[str, StepTimes]
    communication: Mapping[str, CommunicationTimes]

    def samples(self, count: int) -> int:
        """The samples of so many virtual nodes."""
        return _samples(count, self.num_virtual_nodes, self.global_batch_size)

    def step_s_V(self, recorded_type: str) -> tuple[float, ...]:
        """The step time of one GPU of this type with 1, 2, ... virtual nodes."""
        return self.by_type[recorded_type].of_virtual_nodes(self.global_batch_size, self.num_virtual_nodes)

    def gpus(self, recorded_type: str, num_gpus: int, name: str = "") -> GpusOfType:
        """What the solver needs of so many GPUs of this type. name: of the type; "": as recorded."""
        return GpusOfType(
            name=name or recorded_type,
            num_gpus=num_gpus,
            step_s_V=self.step_s_V(recorded_type),
            communication=self.communication[recorded_type],
        )


def job_step_times(state: PoolState, spec: JobSpec) -> JobStepTimes | None:
    """The step times of a submitted spec on the types where it may run; None if no type has measured step times.

    state: with all types. Speeds that jobs report in training correct the step times as they correct the curves.
    """
    curves = _curves(state, spec)
    measured = {
        recorded: _measured(type_name(state, recorded), spec.global_batch_size, curve.iterations_per_s[1], single_gpu)
        for recorded, curve in curves.items()
        if (single_gpu := curve.single_gpu) is not None
    }
    if not measured:
        return None
    base = max(measured, key=lambda recorded: len(measured[recorded].points_P))
    by_type = {
        recorded: _extended(measured[recorded], measured[base])
        if recorded in measured
        else predicted_from(
            measured[base], type_name(state, recorded), curve.iterations_per_s[1] / curves[base].iterations_per_s[1]
        )
        for recorded, curve in curves.items()
    }
    return JobStepTimes(
        num_virtual_nodes=_num_virtual_nodes(curves[base]),
        global_batch_size=spec.global_batch_size,
        reproducible=next(single.reproducible for each in curves.values() if (single := each.single_gpu) is not None),
        by_type=by_type,
        communication=_communication_by_type(curves, measured, spec.global_batch_size),
    )


def _curves(state: PoolState, spec: JobSpec) -> dict[str, MeasuredCurve]:
    """The curves by recorded type, where the speed on one GPU is known."""
    keys = {recorded: spec_on(state, spec, type_name(state, recorded)) for recorded in possible_types(state, spec)}
    curves = {recorded: state.curves.get(on_type.measured_key) for recorded, on_type in keys.items()}
    return {recorded: curve for recorded, curve in curves.items() if curve and curve.iterations_per_s.get(1)}


def _measured(
    gpu_type: str, global_batch_size: int, iterations_per_s: float, single_gpu: SingleGpuStepTimes
) -> StepTimes:
    """iterations_per_s: of one GPU by its curve, to which the step times are corrected."""
    num_virtual_nodes, step_s = single_gpu.num_virtual_nodes, single_gpu.step_s_by_virtual_nodes
    correction = 1.0 / (step_s[num_virtual_nodes] * iterations_per_s)
    return StepTimes.of_measurements(
        gpu_type,
        {_samples(count, num_virtual_nodes, global_batch_size): s * correction for count, s in step_s.items()},
    )


def _extended(times: StepTimes, base: StepTimes) -> StepTimes:
    """The step times, with points of the base for parts below those that its own profiling run has measured. It had no
    time for any, or the user's code failed with so few samples."""
    ratio = times.speed_ratio(base)
    return times if times is base or ratio is None else times.extended_from(base, ratio)


def _communication_by_type(
    curves: Mapping[str, MeasuredCurve], measured: Mapping[str, StepTimes], global_batch_size: int
) -> dict[str, CommunicationTimes]:
    """The communication times of each type, as measured. Those of a type measured on one GPU only, or not at all,
    are predicted from the type with the most measurements, and longer if it is slower."""
    known = {
        recorded: _communication(curves[recorded], times, global_batch_size) for recorded, times in measured.items()
    }
    base = max(known, key=lambda recorded: len(known[recorded].num_workers_P))
    slowness = {
        recorded: curves[base].iterations_per_s[1] / curve.iterations_per_s[1] for recorded, curve in curves.items()
    }
    return {
        recorded: known[recorded]
        if recorded in known and known[recorded].num_workers_P
        else known[base].times(max(slowness[recorded], 1.0))
        for recorded in curves
    }


def _communication(curve: MeasuredCurve, times: StepTimes, global_batch_size: int) -> CommunicationTimes:
    """A step on several GPUs of one type less the step of its largest part on one of them.

    With one virtual node on each, communication is most of the step: then errors of the two measurements count less.
    """
    assert curve.single_gpu is not None
    num_virtual_nodes = curve.single_gpu.num_virtual_nodes
    one_alone_s = curve.single_gpu.step_s_by_virtual_nodes.get(1)
    steps_s = dict[int, tuple[float, float]]()
    for num_gpus, rate in curve.iterations_per_s.items():
        one_each_s = curve.one_virtual_node_s.get(num_gpus)
        if one_each_s is not None and one_alone_s is not None:
            steps_s[num_gpus] = one_each_s, one_alone_s
        elif num_gpus > 1 and rate:
            largest = -(-num_virtual_nodes // num_gpus)
            steps_s[num_gpus] = 1.0 / rate, times.at(_samples(largest, num_virtual_nodes, global_batch_size)).step_s
    return CommunicationTimes.of_measurements(steps_s)


def _num_virtual_nodes(measured: MeasuredCurve) -> int:
    assert measured.single_gpu is not None
    return measured.single_gpu.num_virtual_nodes


def _samples(count: int, num_virtual_nodes: int, global_batch_size: int) -> int:
    """The samples of so many virtual nodes; these differ by one sample at most, and the larger ones count."""
    return -(-count * global_batch_size // num_virtual_nodes)


# --- unmeasured types ----------------------------------------------------------------------------------
# Step times on a GPU type on which no speed of a job is known, by the speeds of other profiles. Pure.
#
# They are shown to users. No promise, allocation or split uses them. Profiles of other owners do not count.


def unmeasured_step_times(
    state: PoolState, owner: str, times: JobStepTimes, recorded: str
) -> tuple[str, StepTimes] | None:
    """The measured type that they are predicted from, as recorded, and the times; None if no profile is known on both.

    Of several measured types, the one with the most profiles on both counts.
    """
    found = {
        base: ratios
        for base, steps in times.by_type.items()
        if any(point.measured for point in steps.points_P) and (ratios := _speed_ratios(state, owner, recorded, base))
    }
    if not found:
        return None
    base = max(found, key=lambda each: len(found[each]))
    ratio = math.exp(fmean(map(math.log, found[base])))
    return base, predicted_from(times.by_type[base], type_name(state, recorded), ratio)


def _speed_ratios(state: PoolState, owner: str, recorded: str, base: str) -> list[float]:
    """How many times as fast as on the base one GPU of this type is, by profile."""
    known = {
        (type_of_profile(key), key.removesuffix(f"@{type_of_profile(key)}")): curve.iterations_per_s.get(1)
        for key, curve in readable_curves(state, owner).items()
        if not key.endswith("]")  # a part of another curve
    }
    profiles = sorted(profile for gpu_type, profile in known if gpu_type == recorded)
    rates = ((known[recorded, profile], known.get((base, profile))) for profile in profiles)
    return [rate / base_rate for rate, base_rate in rates if rate and base_rate]


# --- mixed steps --------------------------------------------------------------------------------------
# The steps of a job whose own GPUs are joined by idle ones of other types. Pure.

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
