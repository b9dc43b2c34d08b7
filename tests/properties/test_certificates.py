"""What the checker believes is true, and what the infeasibility certificates claim is proved; each against worlds
built at random.

The scheduler is not asked here: a feasible world is one that was built around its schedules.
"""

from dataclasses import dataclass, replace

from hypothesis import assume, given
from hypothesis import strategies as st

from elasticflow.shared.messages.rejection import TooSlowAlone, Unproven
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.shared.scheduling.proofs.infeasibility import find_infeasibility_proof
from elasticflow.shared.scheduling.proofs.linear_program import relax
from elasticflow.shared.scheduling.proofs.payment_bound import demands
from elasticflow.shared.state.nodes import PromisableGpus
from elasticflow.simulator.verification.certificate_checker import Checker
from elasticflow.simulator.verification.certificates import (
    CertifiedJob,
    CertifiedPromise,
    Held,
    Level,
    PromiseCertificate,
    RejectionCertificate,
)
from tests.support.example_specs import examples
from tests.support.strategies import scaling_curves

NOW_S = 1000.0
COSTS = (
    ResizeCost.flat(0.0),
    ResizeCost.flat(10.0),
    ResizeCost((1, 2, 4, 8, 16, 32), (4.0, 6.0, 8.0, 10.0, 12.0, 14.0)),
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A job as the scheduler's side sees it."""

    job_id: str
    curve: ScalingCurve
    remaining_iterations: float
    deadline_s: float
    current_num_gpus: int
    stalled_until_s: float
    resize_cost: ResizeCost


def levels_of(curve: ScalingCurve, cost: ResizeCost) -> tuple[Level, ...]:
    return tuple(Level(n, rate, cost.seconds(n)) for n, rate in curve.rate_by_num_gpus.items() if rate > 0)


def certified(job: Asked) -> CertifiedJob:
    return CertifiedJob(
        job_id=job.job_id,
        remaining_iterations=job.remaining_iterations,
        deadline_s=job.deadline_s,
        levels=levels_of(job.curve, job.resize_cost),
        current_num_gpus=job.current_num_gpus,
        stalled_until_s=max(job.stalled_until_s, 0.0),
    )


@st.composite
def schedules(draw: st.DrawFn, levels: tuple[int, ...]) -> tuple[Held, ...]:
    """Stays with and without gaps, on a grid of 2^-10 s."""
    at_s, held = NOW_S, list[Held]()
    for _ in range(draw(st.integers(1, 4))):
        at_s += draw(st.sampled_from([0.0, 0.0, 1 / 1024, 20.0]))
        lasts_s = draw(st.integers(1, 200 * 1024)) / 1024
        held.append(Held(at_s, at_s + lasts_s, draw(st.sampled_from(levels))))
        at_s += lasts_s
    return tuple(held)


def work_done(job: CertifiedJob, schedule: tuple[Held, ...]) -> float:
    """By a plain simulation of its own, second by second of floats."""
    rates = {level.num_gpus: level.iterations_per_s for level in job.levels}
    stops_s = {level.num_gpus: level.stop_s for level in job.levels}
    done, at_s, num_gpus, ready_s = 0.0, NOW_S, job.current_num_gpus, job.stalled_until_s
    for start_s, end_s, n in schedule:
        if start_s > at_s or n != num_gpus:
            ready_s = start_s + stops_s[n]
        done += rates[n] * max(0.0, end_s - max(start_s, ready_s))
        at_s, num_gpus = end_s, n
    return done


@st.composite
def kept_promises(draw: st.DrawFn, cost: ResizeCost) -> list[tuple[Asked, CertifiedPromise]]:
    """Jobs that are as large as their schedules let them be, and due as soon as these end."""
    jobs: list[tuple[Asked, CertifiedPromise]] = []
    for number in range(draw(st.integers(1, 6))):
        curve = draw(scaling_curves())
        levels = levels_of(curve, cost)
        share = draw(st.sampled_from([0, *(level.num_gpus for level in levels)]))
        schedule = draw(schedules(tuple(level.num_gpus for level in levels)))
        stalled_until_s = draw(st.sampled_from([0.0, NOW_S + 5.0])) if share else 0.0
        blank = CertifiedJob(
            job_id=f"job-{number}",
            remaining_iterations=0.0,
            deadline_s=schedule[-1].end_s,
            levels=levels,
            current_num_gpus=share,
            stalled_until_s=stalled_until_s,
        )
        done = work_done(blank, schedule) * (1 - 1e-12)
        if done <= 0:
            continue
        job = Asked(
            job_id=blank.job_id,
            curve=curve,
            remaining_iterations=done,
            deadline_s=blank.deadline_s,
            current_num_gpus=share,
            stalled_until_s=stalled_until_s,
            resize_cost=cost,
        )
        jobs.append((job, CertifiedPromise(job=replace(blank, remaining_iterations=done), schedule=schedule)))
    assume(jobs)
    return jobs


def most_held(promises: list[CertifiedPromise]) -> int:
    instants_s = {held.start_s for promise in promises for held in promise.schedule}
    return max(
        sum(held.num_gpus for p in promises for held in p.schedule if held.start_s <= at_s < held.end_s)
        for at_s in instants_s
    )


def problems(promises: list[CertifiedPromise], num_gpus: int) -> list[str]:
    yes = PromiseCertificate(now_s=NOW_S, num_gpus=num_gpus, promises=tuple(promises))
    return Checker().check_promises(yes)


worlds = st.sampled_from(COSTS).flatmap(lambda cost: st.tuples(st.just(cost), kept_promises(cost)))


@given(worlds)
def test_what_was_built_to_be_kept_is_believed_on_just_enough_gpus(
    world: tuple[ResizeCost, list[tuple[Asked, CertifiedPromise]]],
) -> None:
    promises = [promise for _, promise in world[1]]
    most = most_held(promises)
    assert problems(promises, most) == []
    assert len(problems(promises, most - 1)) == 1


@given(worlds, st.data())
def test_a_schedule_changed_for_the_worse_is_not_believed(
    world: tuple[ResizeCost, list[tuple[Asked, CertifiedPromise]]], data: st.DataObject
) -> None:
    promises = [promise for _, promise in world[1]]
    number = data.draw(st.integers(0, len(promises) - 1))
    promise = promises[number]
    last = promise.schedule[-1]
    job, before = promise.job, promise.schedule[:-1]
    does_work = work_done(job, promise.schedule) > work_done(job, before)
    worse = {
        "more work": replace(promise, job=replace(job, remaining_iterations=job.remaining_iterations * 1.0001)),
        "unknown level": replace(promise, schedule=(*before, last._replace(num_gpus=3))),
        "twice at once": replace(promise, schedule=(*before, last, last)),
    }
    if does_work:
        worse["earlier deadline"] = replace(promise, job=replace(job, deadline_s=last.end_s - 0.001))
        worse["shorter"] = replace(promise, schedule=(*before, last._replace(end_s=last.end_s - 0.001)))
    if before:
        worse["out of order"] = replace(promise, schedule=(last, *before))
    promises[number] = worse[data.draw(st.sampled_from(sorted(worse)))]
    assert problems(promises, most_held(promises)) != []


@examples(100)
@given(worlds)
def test_no_certificate_refutes_a_feasible_deadline(
    world: tuple[ResizeCost, list[tuple[Asked, CertifiedPromise]]],
) -> None:
    """Sound: on just enough GPUs, with every job as large and as urgent as can be."""
    _, kept = world
    num_gpus = most_held([promise for _, promise in kept])
    arriving_job, *promised = (job for job, _ in kept)
    assert find_infeasibility_proof(arriving_job, promised, PromisableGpus(num_gpus), NOW_S) is None


@examples(100)
@given(worlds, st.integers(1, 64), st.floats(0.2, 1.0))
def test_the_checker_accepts_every_proof(
    world: tuple[ResizeCost, list[tuple[Asked, CertifiedPromise]]], num_gpus: int, haste: float
) -> None:
    """Two programs, one truth: whatever the scheduler's side proves, the other side finds proved."""
    _, kept = world
    jobs = [replace(job, deadline_s=NOW_S + haste * (job.deadline_s - NOW_S)) for job, _ in kept]
    arriving_job, promised = certified(jobs[0]), [certified(job) for job in jobs[1:]]
    proof = find_infeasibility_proof(jobs[0], jobs[1:], PromisableGpus(num_gpus), NOW_S)
    infeasibility_certificate = proof or Unproven(earliest_deadline_s=1e6)
    checker = Checker()
    known = tuple(CertifiedPromise(job=replace(job, remaining_iterations=0.0), schedule=()) for job in promised)
    checker.check_promises(PromiseCertificate(now_s=NOW_S, num_gpus=num_gpus, promises=known))
    no = RejectionCertificate(
        now_s=NOW_S,
        num_gpus=num_gpus,
        arriving_job=arriving_job,
        promised=tuple(promised),
        infeasibility_certificate=infeasibility_certificate,
    )
    assert checker.check_rejection(no) == []
    more = replace(no, num_gpus=1 << 20)
    if not isinstance(infeasibility_certificate, Unproven | TooSlowAlone):
        assert checker.check_rejection(more) != [], "on so many GPUs it proves nothing"


@given(worlds)
def test_the_program_finds_no_load_above_what_schedules_need(
    world: tuple[ResizeCost, list[tuple[Asked, CertifiedPromise]]],
) -> None:
    _, kept = world
    jobs = [job for job, _ in kept]
    num_gpus = most_held([promise for _, promise in kept])
    asked = demands(jobs, num_gpus, NOW_S)
    relaxation = relax(asked, max_variables=10_000)
    assert relaxation is not None
    assert relaxation.load <= 1 + 1e-9, "the schedules that it was built around are one solution"
