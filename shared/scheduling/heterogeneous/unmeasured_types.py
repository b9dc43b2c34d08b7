"""Step times on a GPU type on which no speed of a job is known, by the speeds of other profiles. Pure.

They are shown to users. No promise, allocation or split uses them. Profiles of other owners do not count.
"""

import math
from statistics import fmean

from elasticflow.shared.scheduling.heterogeneous.measured_step_times import JobStepTimes
from elasticflow.shared.scheduling.heterogeneous.step_times import StepTimes, predicted_from
from elasticflow.shared.state.fold.owned_profiles import readable_curves
from elasticflow.shared.state.gpu_types import type_name, type_of_profile
from elasticflow.shared.state.pool import PoolState


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
