"""AlternativePlans are plans of the promised jobs, each in time, that leave GPUs alone until an instant."""

from dataclasses import replace

import numpy as np

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.admission.alternative_plans import (
    PRECISION,
    AlternativePlans,
    DestroySet,
    UsableGpus,
    alternative_plans,
    empty_alternative_plans,
)
from elasticflow.shared.scheduling.availability.availability_profile import empty_availability_profile, sweep
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve

LINEAR = ScalingCurve((1, 2, 4), (1.0, 2.0, 4.0))
NUM_GPUS = 4


def alternative_plans_of(plan: AdmissionPlan, max_fillings: int = 1_000) -> tuple[AlternativePlans, int]:
    """With all promised jobs filled anew."""
    size = len(plan.availability.start_B)
    kept, no_rows = empty_availability_profile(size), np.empty(0, np.int64)
    sweep(kept, plan.table.schedules, no_rows, plan.now_s, plan.num_gpus)
    return alternative_plans(
        empty_alternative_plans(size),
        plan.scratch_availability,
        kept,
        plan.filled,
        plan.table.jobs,
        DestroySet(plan.order, 0),
        UsableGpus(plan.num_needed, plan.num_gpus - plan.num_needed),
        max_fillings,
        plan.scratch_arrays,
    )


def plan_of_one(num_gpus: int = NUM_GPUS) -> AdmissionPlan:
    """80 GPU-seconds of work on 4 GPUs in 40 s, at any number of them: it begins at once on 2."""
    job = SchedulableJob(job_id="slack", curve=LINEAR, remaining_iterations=80.0, deadline_s=40.1)
    plan = AdmissionPlan.build([job], num_gpus, 0.0)
    schedules = {"slack": plan.schedules["slack"], "other": plan.schedules["slack"]}
    return AdmissionPlan.build([job, replace(job, job_id="other", deadline_s=1_000.0)], num_gpus, 0.0, schedules)


def test_more_gpus_can_be_left_alone_for_a_shorter_time() -> None:
    found, _ = alternative_plans_of(plan_of_one())
    longest_s = {int(num_gpus): max(found.until_s_C[found.num_gpus_C == num_gpus]) for num_gpus in found.num_gpus_C}
    assert longest_s[1] == longest_s[2] == np.inf, "one is in time on two of them, the other behind it"
    assert 20.1 / PRECISION <= longest_s[4] <= 20.1, "on four the first takes 20 s"
    for index, until_s in enumerate(found.until_s_C):
        size = found.size_C[index]
        starts, free = found.start_CB[index, :size], found.free_CB[index, :size]
        assert free[starts < until_s].min() >= found.num_gpus_C[index]
        assert free.min() >= 0


def test_gpus_beyond_those_that_are_needed_only_stay_free() -> None:
    (few, took), (many, as_well) = (
        alternative_plans_of(plan_of_one()),
        alternative_plans_of(plan_of_one(NUM_GPUS + 3)),
    )
    assert took == as_well
    assert np.array_equal(few.size_C, many.size_C)
    for index, size in enumerate(few.size_C):
        assert np.array_equal(few.start_CB[index, :size], many.start_CB[index, :size])
        assert np.array_equal(few.free_CB[index, :size] + 3, many.free_CB[index, :size])


def test_effort_is_counted_in_fillings() -> None:
    found, took = alternative_plans_of(plan_of_one())
    fewer, less = alternative_plans_of(plan_of_one(), max_fillings=3)
    assert 3 <= less < took
    assert 1 <= len(fewer.size_C) < len(found.size_C)
