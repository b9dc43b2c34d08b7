"""Promises of admission and allocation hold for any jobs, checked by an independent replay in fractions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.admission.admission_search import (
    MANY_JOBS,
    AdmissionSearch,
    earliest_deadline_around_s,
)
from elasticflow.shared.scheduling.admission.planned_pool import unflat
from elasticflow.shared.scheduling.allocation.allocation import RowsWithoutPromise, allocate
from elasticflow.shared.scheduling.jobs.job_table import JobTable, SchedulableJob, Schedule, end_s
from elasticflow.shared.state.nodes import PromisableGpus
from tests.support.admission_plans import admit, fits_around, utilization
from tests.support.exact_replay import advanced, exact_end_s, is_on_time, most_gpus_at_once, share_at
from tests.support.example_specs import examples
from tests.support.strategies import job_lists, schedulable_jobs

NUM_GPUS = 16
LITTLE = 40  # fillings


def admitted_one_by_one(jobs: Sequence[SchedulableJob]) -> tuple[AdmissionPlan, dict[str, SchedulableJob]]:
    """A plan as it grows: a job that fits is promised, and no job is late."""
    plan = AdmissionPlan.build([], NUM_GPUS, 0.0)
    return plan, {job.job_id: job for job in jobs if admit(plan, job, LITTLE)}


def assert_kept(plan: AdmissionPlan, jobs: Mapping[str, SchedulableJob]) -> None:
    """The schedules are possible together, use levels of the jobs, and end every job on time that is not late."""
    schedules = plan.schedules
    assert set(schedules) == set(jobs)
    assert most_gpus_at_once(schedules.values()) <= plan.num_gpus
    for job_id, job in jobs.items():
        if job_id in plan.late_jobs:
            exact_end_s(job, schedules[job_id], plan.now_s)
        else:
            assert is_on_time(job, schedules[job_id], plan.now_s), job_id


def with_others(
    promised: Sequence[SchedulableJob],
    others: Sequence[SchedulableJob],
    kept: Mapping[str, Schedule],
    now_s: float,
) -> tuple[AdmissionPlan, list[int]]:
    """A plan whose table has rows without a promise too."""
    table = JobTable.of([*promised, *others])
    for row, job in enumerate(promised):
        table.write_schedule(row, [number for segment in kept.get(job.job_id, ()) for number in segment])
    plan = AdmissionPlan(table, range(len(promised)), PromisableGpus(NUM_GPUS), now_s)
    return plan, list(range(len(promised), table.num_jobs))


def without_deadline(jobs: Sequence[SchedulableJob]) -> list[SchedulableJob]:
    return [replace(job, job_id=f"free-{job.job_id}", deadline_s=math.inf) for job in jobs]


def schedules_of(plan: AdmissionPlan, others: Sequence[int]) -> dict[str, Schedule]:
    return plan.schedules | {plan.table.job_ids[row]: plan.table.schedule(row) for row in others}


@given(job_lists())
def test_a_plan_never_promises_more_gpus_than_exist(jobs: list[SchedulableJob]) -> None:
    plan = AdmissionPlan.build(jobs, NUM_GPUS, 0.0)
    assert_kept(plan, {job.job_id: job for job in jobs})
    assert AdmissionPlan.build(reversed(jobs), NUM_GPUS, 0.0).schedules == plan.schedules
    promised_gpu_seconds = sum(
        (min(segment.end_s, 5000.0) - segment.start_s) * segment.num_gpus
        for schedule in plan.schedules.values()
        for segment in schedule
        if segment.start_s < 5000.0
    )
    assert math.isclose(
        utilization(plan, 5000.0),
        promised_gpu_seconds / (5000.0 * NUM_GPUS),
        rel_tol=1e-9,
        abs_tol=1e-9,
    )


@given(job_lists(fresh=True), schedulable_jobs(job_id="new", fresh=True))
def test_an_admitted_job_never_makes_another_late(jobs: list[SchedulableJob], new: SchedulableJob) -> None:
    plan, promised = admitted_one_by_one(jobs)
    assert_kept(plan, promised)
    if admit(plan, new):
        assert_kept(plan, promised | {"new": new})
        assert plan.late_jobs == ()
        if not promised:
            assert len({segment.num_gpus for segment in plan.schedules["new"]}) == 1


@given(job_lists(), schedulable_jobs(job_id="new"))
def test_arriving_jobs_do_not_change_late_jobs(jobs: list[SchedulableJob], new: SchedulableJob) -> None:
    plan = AdmissionPlan.build(jobs, NUM_GPUS, 0.0)
    before = plan.schedules
    if admit(plan, new):
        assert_kept(plan, {job.job_id: job for job in [*jobs, new]})
        assert all(plan.schedules[job_id] == before[job_id] for job_id in plan.late_jobs)


@given(job_lists(fresh=True), schedulable_jobs(job_id="new", fresh=True))
def test_a_proposal_leaves_the_plan_untouched_until_it_is_accepted(
    jobs: list[SchedulableJob], new: SchedulableJob
) -> None:
    plan, promised = admitted_one_by_one(jobs)
    before, free_before = plan.schedules, utilization(plan, 1000.0)
    search = AdmissionSearch(plan)
    proposal = search.propose(new)
    fits_around(plan, new)
    search.earliest_deadline_s(new)
    assert plan.schedules == before
    assert utilization(plan, 1000.0) == free_before
    assert (plan.table.num_jobs, plan.late_jobs) == (len(promised), ())
    if proposal is None:
        return
    plan.accept(proposal)
    moved = {job_id: unflat(schedule) for job_id, schedule in proposal.moved(plan.table.job_ids).items()}
    assert plan.schedules == before | moved | {"new": proposal.schedule}
    assert plan.schedules["new"] == proposal.schedule


@given(job_lists(), schedulable_jobs(job_id="new"))
def test_a_job_admitted_with_more_effort_never_makes_another_late(
    jobs: list[SchedulableJob], new: SchedulableJob
) -> None:
    plan = AdmissionPlan.build(jobs, NUM_GPUS, 0.0)
    before, late, proposal = plan.schedules, plan.late_jobs, AdmissionSearch(plan).propose(new)
    assert plan.schedules == before
    if proposal is not None:
        plan.accept(proposal)
        assert_kept(plan, {job.job_id: job for job in [*jobs, new]})
        assert plan.late_jobs == late


@given(
    job_lists(),
    schedulable_jobs(job_id="new", max_levels=3),
    st.sampled_from([0, 1, 2]),
    st.one_of(st.floats(0.0, 2.0), st.floats(0.0, 2000.0)),
)
def test_a_later_deadline_never_turns_a_yes_into_a_no(
    jobs: list[SchedulableJob], new: SchedulableJob, reserve_nodes: int, later_s: float
) -> None:
    plan = AdmissionPlan.build(jobs, NUM_GPUS, 0.0)
    new = replace(new, reserve_nodes=reserve_nodes)
    for search in (AdmissionSearch(plan), AdmissionSearch(plan, LITTLE)):
        earliest_s = search.earliest_deadline_s(new)
        if earliest_s is None:
            assert search.propose(new) is None
            return
        assert earliest_s == int(earliest_s) <= (earliest_deadline_around_s(plan, new) or 0.0)
        for deadline_s in (earliest_s, earliest_s + later_s, earliest_s - 1.0 - later_s, new.deadline_s):
            accepted = search.propose(replace(new, deadline_s=deadline_s)) is not None
            if deadline_s >= earliest_s:
                assert accepted
            elif deadline_s <= earliest_s - 1.0:
                assert not accepted
            elif accepted:  # within the last second, which a quote rounds up
                assert search.propose(replace(new, deadline_s=deadline_s + later_s)) is not None


@given(
    job_lists(),
    schedulable_jobs(job_id="new", max_levels=3),
    st.sampled_from([0, 1, 2]),
    st.one_of(st.floats(0.001, 0.999), st.floats(0.99, 0.999)),
)
def test_less_work_never_turns_a_yes_into_a_no(
    jobs: list[SchedulableJob], new: SchedulableJob, reserve_nodes: int, part: float
) -> None:
    plan = AdmissionPlan.build(jobs, NUM_GPUS, 0.0)
    more = replace(new, reserve_nodes=reserve_nodes)
    less = replace(more, remaining_iterations=part * more.remaining_iterations)
    for max_jobs in (MANY_JOBS, LITTLE):
        for_more, for_less = AdmissionSearch(plan, max_jobs), AdmissionSearch(plan, max_jobs)
        more_s, less_s = for_more.earliest_deadline_s(more), for_less.earliest_deadline_s(less)
        assert more_s is None or (less_s is not None and less_s <= more_s)
        assert for_more.propose(more) is None or for_less.propose(less) is not None


@given(
    job_lists(fresh=True),
    schedulable_jobs(job_id="new", max_levels=3),
    st.sampled_from([1, 3, NUM_GPUS]),
    st.sampled_from([LITTLE, MANY_JOBS]),
)
def test_more_gpus_never_turn_a_yes_into_a_no(
    jobs: list[SchedulableJob], new: SchedulableJob, more: int, max_jobs: int
) -> None:
    plan, promised = admitted_one_by_one(jobs)
    larger = AdmissionPlan.build(promised.values(), NUM_GPUS + more, 0.0, plan.schedules)
    assert larger.schedules == plan.schedules
    here, there = AdmissionSearch(plan, max_jobs), AdmissionSearch(larger, max_jobs)
    here_s, there_s = here.earliest_deadline_s(new), there.earliest_deadline_s(new)
    assert here_s is None or (there_s is not None and there_s <= here_s)
    assert here.propose(new) is None or there.propose(new) is not None


@given(job_lists(fresh=True), schedulable_jobs(job_id="new", fresh=True))
def test_the_quoted_deadline_is_accepted_at_once_and_a_second_less_is_refused(
    jobs: list[SchedulableJob], new: SchedulableJob
) -> None:
    plan, _ = admitted_one_by_one(jobs)
    search, around_s = AdmissionSearch(plan), earliest_deadline_around_s(plan, new)
    quoted_s = search.earliest_deadline_s(new)
    if quoted_s is None or around_s is None:
        assert quoted_s == around_s
        assert min(new.curve.levels) > NUM_GPUS
        return
    assert quoted_s == int(quoted_s) <= around_s
    assert search.propose(replace(new, deadline_s=quoted_s)) is not None
    assert search.propose(replace(new, deadline_s=quoted_s - 1.0)) is None
    assert fits_around(plan, replace(new, deadline_s=around_s))
    assert not fits_around(plan, replace(new, deadline_s=around_s - 1.0))


@given(
    job_lists(fresh=True),
    schedulable_jobs(job_id="new", fresh=True),
    st.floats(0.01, 100.0),
    st.floats(0.01, 0.99),
)
def test_who_fits_around_the_others_does_so_with_more_time_with_less_work_and_on_more_gpus(
    jobs: list[SchedulableJob], new: SchedulableJob, later_s: float, part: float
) -> None:
    plan, promised = admitted_one_by_one(jobs)
    if not fits_around(plan, new):
        return
    assert fits_around(plan, replace(new, deadline_s=new.deadline_s + later_s))
    assert fits_around(plan, replace(new, remaining_iterations=part * new.remaining_iterations))
    larger = AdmissionPlan.build(promised.values(), NUM_GPUS + 1, 0.0, plan.schedules)
    assert larger.schedules == plan.schedules
    assert fits_around(larger, new)
    assert AdmissionSearch(larger).propose(new) is not None


@given(job_lists(), job_lists(max_size=6), st.sampled_from([0.0, 1.0, 60.0]))
def test_allocation_breaks_no_promise(
    promised: list[SchedulableJob], others: list[SchedulableJob], hysteresis_s: float
) -> None:
    others = without_deadline(others)
    planned = AdmissionPlan.build(promised, NUM_GPUS, 0.0)
    plan, rows = with_others(promised, others, {}, 0.0)
    allocation = allocate(plan, RowsWithoutPromise(rows), hysteresis_s)
    shares, schedules = allocation.num_gpus_by_job, schedules_of(plan, rows)
    assert sum(shares.values()) <= NUM_GPUS
    assert allocation.valid_until_s > 0.0
    assert plan.late_jobs == planned.late_jobs
    assert_kept(plan, {job.job_id: job for job in promised})
    assert most_gpus_at_once(schedules.values()) <= NUM_GPUS
    for job in (*promised, *others):
        schedule = schedules[job.job_id]
        exact_end_s(job, schedule, 0.0)
        assert shares[job.job_id] == share_at(schedule, 0.0)
        assert all(s.start_s in (0.0,) or s.start_s >= allocation.valid_until_s for s in schedule)
        assert not schedule or schedule[0].end_s >= allocation.valid_until_s
    for job in promised:
        assert end_s(schedules[job.job_id]) <= end_s(planned.schedules[job.job_id])
    again, rows = with_others(promised, others, {}, 0.0)  # whatever the memory of loops was left with
    assert allocate(again, RowsWithoutPromise(rows), hysteresis_s) == allocation


@examples(60)
@given(
    job_lists(fresh=True),
    job_lists(max_size=4, fresh=True),
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4),
)
def test_promises_hold_over_any_number_of_replans(
    jobs: list[SchedulableJob], others: list[SchedulableJob], parts: list[float]
) -> None:
    plan, promised = admitted_one_by_one(jobs)
    waiting = {job.job_id: job for job in without_deadline(others)}
    plan, rows = with_others(list(promised.values()), list(waiting.values()), plan.schedules, 0.0)
    now_s = 0.0
    for part in parts:
        allocation = allocate(plan, RowsWithoutPromise(rows))
        schedules = schedules_of(plan, rows)
        then_s = now_s + part * (min(allocation.valid_until_s, now_s + 1000.0) - now_s)
        promised = _advanced(promised, schedules, now_s, then_s)
        waiting = _advanced(waiting, schedules, now_s, then_s)
        now_s = then_s
        plan, rows = with_others(list(promised.values()), list(waiting.values()), schedules, now_s)
        assert plan.late_jobs == ()
        assert_kept(plan, promised)
        assert plan.changed_rows() == [], "what holds is kept as it is"


def _advanced(
    jobs: Mapping[str, SchedulableJob], schedules: Mapping[str, Schedule], now_s: float, to_s: float
) -> dict[str, SchedulableJob]:
    moved = [advanced(job, schedules[job_id], now_s, to_s) for job_id, job in jobs.items()]
    return {job.job_id: job for job in moved if job.remaining_iterations > 0.0}


@given(job_lists(fresh=True), st.integers(1, NUM_GPUS - 1))
def test_on_fewer_gpus_the_late_promises_are_named(jobs: list[SchedulableJob], num_gpus: int) -> None:
    plan, promised = admitted_one_by_one(jobs)
    fewer = AdmissionPlan.build(promised.values(), num_gpus, 0.0, plan.schedules)
    assert_kept(fewer, promised)
    for job_id in fewer.late_jobs:
        ends_s = exact_end_s(promised[job_id], fewer.schedules[job_id], 0.0)
        runs_here = min(promised[job_id].curve.levels) <= num_gpus
        assert (ends_s is not None) == runs_here
    rows_that_differ = {job_id for job_id in promised if fewer.schedules[job_id] != plan.schedules[job_id]}
    assert {fewer.table.job_ids[row] for row in fewer.changed_rows()} == rows_that_differ
