"""Clearings found by local search are plans of the promised jobs like others, exact and blind to who asks."""

import numpy as np

from shared.scheduling.admission_plan import AdmissionPlan
from shared.scheduling.clearings import Clearings, Usable, empty_clearings
from shared.scheduling.job_table import SchedulableJob, Segment, schedule_of
from shared.scheduling.local_search import Standing, search_clearings
from shared.scheduling.profile import fewest_free
from shared.scheduling.scaling_curve import ScalingCurve
from tests.exact_replay import is_on_time, most_gpus_at_once

LINEAR = ScalingCurve((1, 2, 4), (1.0, 2.0, 4.0))
NUM_GPUS = 4
PROMISED = tuple(
    SchedulableJob(job_id=name, curve=LINEAR, remaining_iterations=iterations, deadline_s=deadline_s)
    for name, iterations, deadline_s in (("first", 60.0, 31.0), ("second", 80.0, 61.0), ("third", 90.0, 91.0))
)


def searched(plan: AdmissionPlan, most_clearings: int = 64, most_fillings: int = 2_000) -> Clearings:
    return search_clearings(
        empty_clearings(len(plan.profile.start_B)),
        plan.other_profile,
        Standing(plan.profile, plan.table.schedules, plan.order),
        plan.filled,
        plan.table.jobs,
        Usable(plan.num_needed, plan.num_gpus - plan.num_needed),
        most_fillings,
        most_clearings,
        np.random.default_rng(3),
        plan.workspace,
    )


def test_each_is_a_plan_in_which_all_are_in_time_and_which_leaves_gpus_alone() -> None:
    plan = AdmissionPlan.build(PROMISED, NUM_GPUS, 0.0)
    standing, found = plan.schedules, searched(plan)
    assert len(found.size_C) > 3
    assert set(found.num_gpus_C.tolist()) >= {2, 4}
    for clearing, (num_gpus, until_s) in enumerate(zip(found.num_gpus_C, found.until_s_C, strict=True)):
        searched(plan, clearing + 1)
        size = found.size_C[clearing]
        np.testing.assert_array_equal(plan.other_profile.free_B[:size], found.free_CB[clearing, :size])
        schedules = {job.job_id: schedule_of(plan.filled, row) for row, job in enumerate(PROMISED)}
        assert all(is_on_time(job, schedules[job.job_id], 0.0) for job in PROMISED)
        alone = (Segment(0.0, float(min(until_s, 1e6)), int(num_gpus)),)
        assert most_gpus_at_once([*schedules.values(), alone]) <= NUM_GPUS
    assert plan.schedules == standing, "the plan stands until somebody is promised"


def test_longer_and_longer_for_each_number_of_gpus_beyond_what_is_free_already() -> None:
    plan = AdmissionPlan.build(PROMISED, NUM_GPUS, 0.0)
    found = searched(plan)
    for num_gpus in np.unique(found.num_gpus_C):
        until_s = found.until_s_C[found.num_gpus_C == num_gpus]
        assert (np.diff(until_s) > 0.0).all()
        assert fewest_free(plan.profile, 0.0, float(until_s[0])) < num_gpus


def test_gpus_beyond_those_that_are_needed_only_stay_free() -> None:
    plan = AdmissionPlan.build(PROMISED, NUM_GPUS, 0.0)
    larger = AdmissionPlan.build(PROMISED, NUM_GPUS + 3, 0.0, plan.schedules)
    assert larger.schedules == plan.schedules
    found, more = searched(plan), searched(larger)
    np.testing.assert_array_equal(more.until_s_C, found.until_s_C)
    np.testing.assert_array_equal(more.size_C, found.size_C)
    for clearing, size in enumerate(found.size_C):
        np.testing.assert_array_equal(more.start_CB[clearing, :size], found.start_CB[clearing, :size])
        np.testing.assert_array_equal(more.free_CB[clearing, :size], found.free_CB[clearing, :size] + 3)


def test_no_effort_finds_nothing() -> None:
    assert len(searched(AdmissionPlan.build(PROMISED, NUM_GPUS, 0.0), most_fillings=0).size_C) == 0
