"""No promise rests on the GPUs of a node beyond its drain, for any nodes, ends and jobs. The certificate checker, which
shares no code with the scheduler, checks each plan; a replay lets every job stop once at each drain."""

from collections.abc import Sequence

from hypothesis import assume, given
from hypothesis import strategies as st

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob, end_s
from elasticflow.shared.state.nodes import CapacityDrop
from elasticflow.simulator.verification.certificate_checker import Checker
from elasticflow.simulator.verification.certificates import (
    CertifiedJob,
    CertifiedPromise,
    GpusFrom,
    Held,
    Level,
    PromiseCertificate,
)
from tests.support.admission_plans import admit
from tests.support.strategies import job_lists

NUM_GPUS = 16
LITTLE = 40  # fillings
FAR_S = 1e9  # certificates have finite deadlines


@st.composite
def drops(draw: st.DrawFn) -> tuple[CapacityDrop, ...]:
    """Of nodes with up to 8 GPUs, at distinct instants; at most all GPUs."""
    left, found = NUM_GPUS, list[CapacityDrop]()
    for at_s in sorted(draw(st.sets(st.integers(1, 4_000), min_size=1, max_size=4))):
        num_gpus = min(draw(st.integers(1, 8)), left)
        found += [CapacityDrop(float(at_s), num_gpus)] if num_gpus else []
        left -= num_gpus
    return tuple(found)


def later(ends: Sequence[CapacityDrop]) -> tuple[GpusFrom, ...]:
    """What is there from each drain on, as the checker counts."""
    left, found = NUM_GPUS, list[GpusFrom]()
    for at_s, num_gpus in ends:
        left -= num_gpus
        found.append(GpusFrom(at_s, left))
    return tuple(found)


def certificate(
    plan: AdmissionPlan, jobs: Sequence[SchedulableJob], ends: Sequence[CapacityDrop]
) -> PromiseCertificate:
    """What the plan claims, for all jobs that are not late."""
    schedules = plan.schedules
    promises = [
        CertifiedPromise(
            job=CertifiedJob(
                job_id=job.job_id,
                remaining_iterations=job.remaining_iterations,
                deadline_s=min(job.deadline_s, FAR_S),
                levels=tuple(
                    Level(n, rate, job.resize_cost.seconds(n))
                    for n, rate in job.curve.rate_by_num_gpus.items()
                    if rate > 0
                ),
                current_num_gpus=job.current_num_gpus,
                stalled_until_s=max(job.stalled_until_s, plan.now_s),
            ),
            schedule=tuple(Held(*segment) for segment in schedules[job.job_id]),
        )
        for job in jobs
        if job.job_id in schedules and job.job_id not in plan.late_jobs
    ]
    return PromiseCertificate(now_s=plan.now_s, num_gpus=NUM_GPUS, promises=tuple(promises), later=later(ends))


@given(job_lists(fresh=True), drops())
def test_admitted_jobs_use_no_gpu_beyond_its_drain(jobs: list[SchedulableJob], ends: tuple[CapacityDrop, ...]) -> None:
    plan = AdmissionPlan.build([], NUM_GPUS, 0.0, drops=ends, moves_s=[drop.at_s for drop in ends])
    admitted = [job for job in jobs if admit(plan, job, LITTLE)]
    assert Checker().check_promises(certificate(plan, admitted, ends)) == []


@given(job_lists(), drops())
def test_a_plan_that_is_made_anew_uses_none_either(jobs: list[SchedulableJob], ends: tuple[CapacityDrop, ...]) -> None:
    """Schedules made without ends are kept as far as they hold; late jobs hold no GPU that is gone."""
    before = AdmissionPlan.build(jobs, NUM_GPUS, 0.0)
    plan = AdmissionPlan.build(jobs, NUM_GPUS, 0.0, before.schedules, drops=ends, moves_s=[drop.at_s for drop in ends])
    assert Checker().check_promises(certificate(plan, jobs, ends)) == []
    assert not plan.overcommitted


@given(job_lists(fresh=True), drops())
def test_the_checker_finds_promises_that_rest_on_nodes_beyond_their_end(
    jobs: list[SchedulableJob], ends: tuple[CapacityDrop, ...]
) -> None:
    """Exactly those plans made without ends that hold more GPUs than are left at some instant."""
    plan = AdmissionPlan.build([], NUM_GPUS, 0.0)
    admitted = [job for job in jobs if admit(plan, job, LITTLE)]
    assume(admitted)
    segments = [segment for schedule in plan.schedules.values() for segment in schedule]
    instants_s = [at_s for at_s, _ in ends] + [start_s for start_s, _, _ in segments]

    def held(at_s: float) -> int:
        return sum(num_gpus for start_s, until_s, num_gpus in segments if start_s <= at_s < until_s)

    def there(at_s: float) -> int:
        return NUM_GPUS - sum(num_gpus for from_s, num_gpus in ends if from_s <= at_s)

    is_wrong = any(held(at_s) > there(at_s) for at_s in instants_s)
    problems = Checker().check_promises(certificate(plan, admitted, ends))
    assert bool(problems) == is_wrong
    assert all("GPUs are held at" in problem for problem in problems)


@given(job_lists(fresh=True, max_size=5), drops())
def test_a_schedule_allows_for_one_stop_at_each_drain(
    jobs: list[SchedulableJob], ends: tuple[CapacityDrop, ...]
) -> None:
    """The job stops at each drain before the end of its schedule for as long as its costliest level takes."""
    plan = AdmissionPlan.build([], NUM_GPUS, 0.0, drops=ends, moves_s=[drop.at_s for drop in ends])
    for job in jobs:
        if not admit(plan, job, LITTLE):
            continue
        schedule, done, held = plan.schedules[job.job_id], 0.0, job.current_num_gpus
        for start_s, until_s, num_gpus in schedule:
            stop_s = 0.0 if num_gpus == held else job.resize_cost.seconds(num_gpus)
            done += job.curve.throughput(num_gpus) * max(until_s - start_s - stop_s, 0.0)
            held = num_gpus
        most = max(num_gpus for _, _, num_gpus in schedule)
        costliest = max(
            job.curve.throughput(level) * job.resize_cost.seconds(level) for level in job.curve.levels if level <= most
        )
        num_moves = sum(drop.at_s < end_s(schedule) - 0.01 for drop in ends)
        assert done >= job.remaining_iterations + num_moves * costliest - 1e-6 * job.remaining_iterations


@given(job_lists(fresh=True), drops(), st.floats(1.0, 5_000.0))
def test_later_ends_and_no_ends_never_turn_a_job_away(
    jobs: list[SchedulableJob], ends: tuple[CapacityDrop, ...], more_s: float
) -> None:
    """On an empty pool, where filling is exact."""
    moves_s = [drop.at_s for drop in ends]
    later_ends = tuple(CapacityDrop(at_s + more_s, num_gpus) for at_s, num_gpus in ends)
    for job in jobs:
        soon = AdmissionPlan.build([], NUM_GPUS, 0.0, drops=ends, moves_s=moves_s)
        late = AdmissionPlan.build([], NUM_GPUS, 0.0, drops=later_ends, moves_s=[at_s for at_s, _ in later_ends])
        never = AdmissionPlan.build([], NUM_GPUS, 0.0)
        fits = [admit(plan, job, 0) for plan in (soon, late, never)]
        assert fits == sorted(fits)
