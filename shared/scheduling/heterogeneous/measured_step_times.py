"""The step times of a job by GPU type, and its communication, from the profiles of a pool. Pure.

A type without step times of its own is predicted from a measured one, by the ratio of their speeds on one GPU. Parts of
the batch that were not measured on a type are predicted from the type with the most measurements.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.measurements import SingleGpuStepTimes
from elasticflow.shared.scheduling.heterogeneous.step_times import CommunicationTimes, StepTimes, predicted_from
from elasticflow.shared.scheduling.heterogeneous.virtual_node_split import GpusOfType
from elasticflow.shared.state.fold.profiles import readable_curves
from elasticflow.shared.state.gpu_types import possible_types, spec_on, type_name, type_of_profile
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.pool import PoolState


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
