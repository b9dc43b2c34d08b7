"""AlternativePlans found by local search are plans of the promised jobs like others, exact and blind to who asks."""

import numpy as np

from elasticflow.shared.messages.share_schedule import ShareSegment
from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.admission.alternative_plans import (
    AlternativePlans,
    UsableGpus,
    empty_alternative_plans,
)
from elasticflow.shared.scheduling.admission.neighborhood_search import CurrentPlan, search_neighborhoods
from elasticflow.shared.scheduling.availability.availability_profile import fewest_free
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob, schedule_of
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from tests.support.exact_replay import is_on_time, most_gpus_at_once

LINEAR = ScalingCurve((1, 2, 4), (1.0, 2.0, 4.0))
NUM_GPUS = 4
PROMISED = tuple(
    SchedulableJob(job_id=name, curve=LINEAR, remaining_iterations=iterations, deadline_s=deadline_s)
    for name, iterations, deadline_s in (("first", 60.0, 31.0), ("second", 80.0, 61.0), ("third", 90.0, 91.0))
)


def searched(plan: AdmissionPlan, max_plans: int = 64, max_fillings: int = 2_000) -> AlternativePlans:
    return search_neighborhoods(
        empty_alternative_plans(len(plan.availability.start_B)),
        plan.scratch_availability,
        CurrentPlan(plan.availability, plan.table.schedules, plan.order),
        plan.filled,
        plan.table.jobs,
        UsableGpus(plan.num_needed, plan.num_gpus - plan.num_needed),
        max_fillings,
        max_plans,
        np.random.default_rng(3),
        plan.scratch_arrays,
    )


def test_each_is_a_plan_in_which_all_are_in_time_and_which_leaves_gpus_alone() -> None:
    plan = AdmissionPlan.build(PROMISED, NUM_GPUS, 0.0)
    standing, found = plan.schedules, searched(plan)
    assert len(found.size_C) > 3
    assert set(found.num_gpus_C.tolist()) >= {2, 4}
    for plan_index, (num_gpus, until_s) in enumerate(zip(found.num_gpus_C, found.until_s_C, strict=True)):
        searched(plan, plan_index + 1)
        size = found.size_C[plan_index]
        np.testing.assert_array_equal(plan.scratch_availability.free_B[:size], found.free_CB[plan_index, :size])
        schedules = {job.job_id: schedule_of(plan.filled, row) for row, job in enumerate(PROMISED)}
        assert all(is_on_time(job, schedules[job.job_id], 0.0) for job in PROMISED)
        alone = (ShareSegment(0.0, float(min(until_s, 1e6)), int(num_gpus)),)
        assert most_gpus_at_once([*schedules.values(), alone]) <= NUM_GPUS
    assert plan.schedules == standing, "the plan is unchanged until a job is promised"


def test_longer_and_longer_for_each_number_of_gpus_beyond_what_is_free_already() -> None:
    plan = AdmissionPlan.build(PROMISED, NUM_GPUS, 0.0)
    found = searched(plan)
    for num_gpus in np.unique(found.num_gpus_C):
        until_s = found.until_s_C[found.num_gpus_C == num_gpus]
        assert (np.diff(until_s) > 0.0).all()
        assert fewest_free(plan.availability, 0.0, float(until_s[0])) < num_gpus


def test_gpus_beyond_those_that_are_needed_only_stay_free() -> None:
    plan = AdmissionPlan.build(PROMISED, NUM_GPUS, 0.0)
    larger = AdmissionPlan.build(PROMISED, NUM_GPUS + 3, 0.0, plan.schedules)
    assert larger.schedules == plan.schedules
    found, more = searched(plan), searched(larger)
    np.testing.assert_array_equal(more.until_s_C, found.until_s_C)
    np.testing.assert_array_equal(more.size_C, found.size_C)
    for plan_index, size in enumerate(found.size_C):
        np.testing.assert_array_equal(more.start_CB[plan_index, :size], found.start_CB[plan_index, :size])
        np.testing.assert_array_equal(more.free_CB[plan_index, :size], found.free_CB[plan_index, :size] + 3)


def test_no_effort_finds_nothing() -> None:
    assert len(searched(AdmissionPlan.build(PROMISED, NUM_GPUS, 0.0), max_fillings=0).size_C) == 0
