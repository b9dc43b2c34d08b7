"""Starts that take longer than a job may go without a step, on the virtual cluster."""

from dataclasses import replace

import pytest

from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import JobFailed, WorkerCrashed
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.shared.state.job import Phase
from elasticflow.simulator.pipeline.cluster import Arrival, Scenario
from elasticflow.simulator.pipeline.invariants import broken_promises
from elasticflow.simulator.timing.training_time import TrainingTime
from testbed.simulated_runs import problems, random_scenario, run_to_rest

START_S = 200.0  # the pool gives a job 120 s without a step
LONGEST_START_S = 300.0


def scenario(seed: int, *, curves_known: bool, declared_s: float) -> Scenario:
    """Every job starts as slowly, at each change of its GPUs."""
    base = random_scenario(seed, num_jobs=6, num_nodes=2, curves_known=curves_known)

    def declaring(arrival: Arrival) -> Arrival:
        command = arrival.command
        if not isinstance(command, SubmitJob):
            return arrival
        deadline_in_s = None if command.spec.deadline_in_s is None else command.spec.deadline_in_s + 8 * START_S
        spec = replace(command.spec, start_timeout_s=declared_s, deadline_in_s=deadline_in_s)
        return replace(arrival, command=replace(command, spec=spec))

    training = TrainingTime.of_cost(ResizeCost.flat(START_S), stop_s=0.02)
    timing_model = replace(base.timing_model, training=training, give_up_s=LONGEST_START_S)
    return replace(base, timing_model=timing_model, arrivals=tuple(map(declaring, base.arrivals)))


@pytest.mark.parametrize(("seed", "curves_known"), [(1, True), (2, False), (3, True), (6, False)])
def test_jobs_that_declare_a_slow_start_train_and_their_promises_are_kept(seed: int, curves_known: bool) -> None:
    declared = scenario(seed, curves_known=curves_known, declared_s=LONGEST_START_S)
    cluster = run_to_rest(declared, seed, longest_s=30_000.0)
    assert list(problems(cluster)) == []
    failed = [entry.message for entry in cluster.entries if isinstance(entry.message, JobFailed | WorkerCrashed)]
    assert failed == []
    assert list(broken_promises(cluster.state)) == []
    finished = [job for job in cluster.state.ended_jobs.values() if job.phase is Phase.FINISHED]
    assert any(job.spec is not None and job.spec.job_class is JobClass.SLO for job in finished)
    learned_s = cluster.state.start_costs.values()
    assert learned_s
    assert all(START_S <= cost_s <= LONGEST_START_S for cost_s in learned_s)
    assert cluster.state.start_cost_s == 0.0, "nothing is learned of other jobs"


def test_without_a_word_of_it_the_jobs_are_stalled() -> None:
    cluster = run_to_rest(scenario(1, curves_known=True, declared_s=0.0), 1, longest_s=30_000.0)
    failed = [entry.message for entry in cluster.entries if isinstance(entry.message, JobFailed)]
    assert failed
    assert all("it did not start to train" in event.error for event in failed)
