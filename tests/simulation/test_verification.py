"""Observed decisions: correct ones pass, and each kind of wrong decision is detected.

The planners are scripted: one job after another on 4 GPUs, to the second, and whatever lie a test puts in.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from elasticflow.shared.messages.commands import Command, SubmitJob
from elasticflow.shared.messages.events import AllocationDecided, JobAdmitted, JobRejected, PlanEvent
from elasticflow.shared.messages.gpus import segments
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.rejection import TooSlowAlone, Unproven
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.shared.state.policy import planner
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.trace.cluster_state import TrainingModel
from elasticflow.simulator.trace.failures_and_speed_noise import Deviations, Failures
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.trace.simulation import SimulatedPool, Simulation
from elasticflow.simulator.verification.trace_verification import TraceVerification
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, Workload, bundled_throughputs, bundled_trace

COST = ResizeCost((1, 4), (2.0, 5.0))
NUM_GPUS, RATE = 4, 0.3
Lie = Callable[[PlanEvent], PlanEvent]


def job(job_id: str, iterations: int, window_s: float, job_class: JobClass = JobClass.SLO) -> TraceJob:
    return TraceJob(
        job_id=job_id,
        submitted_at_s=100.0,
        num_iterations=iterations,
        model_name="net",
        global_batch_size=64,
        deadline_s=100.0 + window_s if job_class is JobClass.SLO else None,
        job_class=job_class,
        curve=ScalingCurve((1, NUM_GPUS), (0.1, RATE)),
    )


FIRST, SECOND = job("first", 1000, 4000.0), job("second", 700, 7000.0)
SLOW = job("slow", 3000, 9000.0)  # 5 s and 10,000 s
JOBS = (FIRST, SECOND, SLOW, job("free", 10, 0.0, JobClass.BEST_EFFORT))


def truth(event: PlanEvent) -> PlanEvent:
    return event


def lasting_s(iterations: float) -> float:
    """On a grid of 2^-10 s, with a billionth of the work to spare."""
    return COST.seconds(NUM_GPUS) + math.ceil(iterations * (1 + 1e-9) / RATE * 1024) / 1024


def admit_one_after_another(
    state: PoolState, commands: tuple[Command, ...], now_s: float, lie: Lie
) -> tuple[PlanEvent, ...]:
    events, free_s = list[PlanEvent](), now_s
    for command in commands:
        assert isinstance(command, SubmitJob)
        spec, same = command.spec, {"job_id": command.job_id, "tenant": command.tenant, "at_s": now_s}
        end_s = free_s + lasting_s(spec.max_iterations)
        share = () if spec.deadline_s is None else (free_s, end_s, float(NUM_GPUS))
        if spec.deadline_s is not None and end_s > spec.deadline_s:
            ends_s = now_s + COST.seconds(NUM_GPUS) + spec.max_iterations / RATE
            events.append(
                JobRejected(
                    spec=spec,
                    reason="deadline",
                    explanation="",
                    deadline_s=spec.deadline_s,
                    infeasibility_certificate=TooSlowAlone(earliest_end_s=ends_s),
                    **same,
                )
            )
            continue
        free_s = end_s if share else free_s
        events.append(
            JobAdmitted(
                spec=spec,
                deadline_s=spec.deadline_s,
                minimum_satisfactory_share=share,
                gpu_seconds=0.0,
                **same,
            )
        )
    return tuple(map(lie, events))


def allocate_as_planned(
    state: PoolState, commands: tuple[Command, ...], now_s: float, lie: Lie
) -> tuple[PlanEvent, ...]:
    due = state.allocation_valid_until_s is not None and now_s >= state.allocation_valid_until_s
    if not due and state.scheduling_event_sequence <= state.allocation_based_on:
        return ()
    planned = [(job.job_id, segment) for job in state.live_jobs.values() for segment in segments(job.planned_share)]
    shares = {job_id: held.num_gpus for job_id, held in planned if held.start_s <= now_s < held.end_s}
    changes_s = [at_s for _, held in planned for at_s in (held.start_s, held.end_s) if at_s > now_s]
    waiting = [job.job_id for job in state.live_jobs.values() if not job.promised]
    if waiting and not planned:
        shares[waiting[0]] = NUM_GPUS
    shares = shares if state.num_gpus else {}
    decided = AllocationDecided(num_gpus_by_job=shares, valid_until_s=min(changes_s, default=None), at_s=now_s)
    return (lie(decided),)


def observed(lie: Lie = truth, cost: ResizeCost = COST, failures: Failures | None = None) -> TraceVerification:
    workload = Workload.of("test", JOBS)
    verification = TraceVerification(workload, cost)
    policies = {
        "admission": planner(
            "admission", lambda state, commands, at: admit_one_after_another(state, commands, at, lie)
        ),
        "allocator": planner(
            "allocator",
            lambda state, commands, at: allocate_as_planned(state, commands, at, lie),
            lambda state: state.allocation_valid_until_s,
        ),
        "placement": planners()["placement"],
    }
    cluster = ClusterShape(num_nodes=1, gpus_per_node=NUM_GPUS)
    simulation = Simulation(
        workload,
        cluster,
        TrainingModel(resize_cost=cost),
        SimulatedPool(policies=policies),
        Deviations(failures=failures),
        (verification,),
    )
    simulation.run()
    return verification


def test_honest_decisions_pass() -> None:
    verification = observed()
    assert verification.failures == []
    assert verification.certificate_failures == 0
    assert verification.certificates_checked >= 3 + 3, "two promises, a rejection, and an allocation at every change"
    assert verification.unproven == 0


def test_a_cost_that_the_plan_does_not_count_is_detected() -> None:
    """A thousandth of a second more for each start, in windows that are long enough for it."""
    verification = observed(cost=ResizeCost((1, 4), (2.0, 5.001)))
    assert "first: its schedule does not end it by 4100.0 s" in verification.failures[0]


def admission_lie(job_id: str, **changes: object) -> Lie:
    def lie(event: PlanEvent) -> PlanEvent:
        if isinstance(event, JobAdmitted | JobRejected) and event.job_id == job_id:
            return replace(event, **changes)
        return event

    return lie


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (admission_lie("first", minimum_satisfactory_share=()), "does not end it by"),
        (admission_lie("first", minimum_satisfactory_share=(100.0, 3000.0, 4.0)), "does not end it by"),
        (admission_lie("second", minimum_satisfactory_share=(100.0, 3000.0, 4.0)), "8 GPUs are held"),
        (admission_lie("second", minimum_satisfactory_share=(3500.0, 6000.0, 8.0)), "does not run on 8 GPUs"),
        (admission_lie("slow", infeasibility_certificate=None), "without an infeasibility certificate"),
        (
            admission_lie("slow", infeasibility_certificate=TooSlowAlone(earliest_end_s=9500.0)),
            "alone it ends at",
        ),
        (
            admission_lie("slow", infeasibility_certificate=Unproven(earliest_deadline_s=9000.0)),
            "is no later than",
        ),
    ],
)
def test_a_wrong_decision_of_admission_is_detected(lie: Lie, words: str) -> None:
    verification = observed(lie)
    assert verification.failures[0].startswith("at 100.0 s: ")
    assert words in verification.failures[0]


def allocated_instead(num_gpus: int) -> Lie:
    def lie(event: PlanEvent) -> PlanEvent:
        if isinstance(event, AllocationDecided) and "first" in event.num_gpus_by_job:
            return replace(event, num_gpus_by_job={"first": num_gpus})
        return event

    return lie


@pytest.mark.parametrize("num_gpus", [0, 1])
def test_gpus_outside_every_schedule_are_detected(num_gpus: int) -> None:
    """The promise is then seen to break too: the recorded schedule no longer ends the job."""
    verification = observed(allocated_instead(num_gpus))
    assert f"first: the allocation gives it {num_gpus} GPUs, its schedule 4" in verification.failures[0]


def test_a_refusal_that_proves_nothing_is_counted() -> None:
    verification = observed(admission_lie("slow", infeasibility_certificate=Unproven(earliest_deadline_s=12_000.0)))
    assert (verification.failures, verification.unproven) == ([], 1)


def test_a_promise_is_void_when_more_nodes_are_down_than_are_reserved_for() -> None:
    verification = observed(failures=Failures(seed=1, mean_up_s=500.0, mean_down_s=100.0))
    assert verification.failures == []
    assert verification.certificates_checked > 3


@pytest.mark.parametrize(
    ("reserve_nodes", "seed", "mean_up_s", "mean_down_s"),
    [(0, 2, 3_600.0, 3_600.0), (1, 6, 3_600.0, 3_600.0), (1, 3, 600.0, 30.0)],
)
def test_beyond_the_reserve_promises_break_and_no_certificate_is_wrong(
    reserve_nodes: int, seed: int, mean_up_s: float, mean_down_s: float
) -> None:
    simulated_run = SimulatedRun(
        workload=read_trace(bundled_trace("bursty"), read_throughputs(bundled_throughputs())),
        cluster=ClusterShape(num_nodes=4, gpus_per_node=4),
        policy="first-come",
        reserve_nodes=reserve_nodes,
        failures=Failures(seed=seed, mean_up_s=mean_up_s, mean_down_s=mean_down_s),
    )
    verification = simulated_run.verification()
    assert verification is not None
    assert simulated_run.simulation(verification).run().num_late() > 0
    assert verification.failures == []
    assert verification.certificates_checked > 200
