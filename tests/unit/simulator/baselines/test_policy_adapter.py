"""A baseline in the place of admission and allocator: its account of the past, and its events in the ledger."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import CancelJob
from elasticflow.shared.messages.events import AllocationDecided, JobAdmitted, JobRejected, PlanDecided
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.state.fold.ledger_fold import Unreadable
from elasticflow.shared.state.policy import Policy
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.baselines.baseline import Baseline, BaselineJob, Shares, UserRequest, Wait
from elasticflow.simulator.baselines.policy_catalogue import BASELINES, JobAccounting, Tenure, baseline_policies
from testbed.histories import LINEAR, NOW_S, pool, submit


@dataclass(frozen=True)
class Scripted:
    """Returns the given shares, and records the jobs that it saw."""

    name: str = "scripted"
    script: dict[str, int] = field(default_factory=dict)
    valid_until_s: float = float("inf")
    seen: dict[str, BaselineJob] = field(default_factory=dict)

    def admits(self, arriving_job: BaselineJob, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> bool:
        self.seen[arriving_job.job_id] = arriving_job
        return True

    def shares(self, jobs: Sequence[BaselineJob], num_gpus: int, now_s: float) -> Shares:
        self.seen.update((job.job_id, job) for job in jobs)
        return Shares(num_gpus_by_job=dict(self.script), valid_until_s=self.valid_until_s)


class Table:
    """A ledger on which a baseline decides."""

    def __init__(self, baseline: Baseline, state: PoolState, **requested: int) -> None:
        requests = {job_id: UserRequest(num_gpus=num_gpus) for job_id, num_gpus in requested.items()}
        policies = baseline_policies(baseline, requests)
        self.policies: dict[str, Policy[JobAccounting]] = {policy.service: policy for policy in policies}
        self.books = policies[1].start(state)

    def decide(self, service: str, *commands: Any, at_s: float = 0.0) -> tuple[Any, ...]:
        policy, sequence = self.policies[service], self.books.pool.sequence
        said = policy.decide(self.books, commands, NOW_S + at_s)
        if said:
            decision = PlanDecided(
                service=service, based_on=sequence, now_s=NOW_S + at_s, commands=commands, events=said
            )
            self.books = policy.evolve(self.books, decision, sequence + 1)
        return said

    def fact(self, event: Any) -> None:
        self.books = self.policies["allocator"].evolve(self.books, event, self.books.pool.sequence + 1)


def test_what_a_job_has_attained_and_since_when_follows_from_the_allocations() -> None:
    baseline = Scripted(script={"one": 4}, valid_until_s=NOW_S + 30.0)
    table = Table(baseline, pool(8).state)
    table.decide("admission", submit("one", max_iterations=10_000), at_s=-20.0)
    table.decide("allocator", at_s=0.0)
    waited = baseline.seen["one"]
    assert (waited.current_num_gpus, waited.held_since_s, waited.submitted_at_s) == (
        0,
        NOW_S - 20.0,
        NOW_S - 20.0,
    )
    baseline.script["one"] = 2
    assert table.decide("allocator", at_s=29.0) == ()  # nothing happened, nothing is due
    table.decide("allocator", at_s=30.0)
    held = baseline.seen["one"]
    assert (held.current_num_gpus, held.held_since_s, held.attained_gpu_seconds) == (4, NOW_S, 120.0)
    assert held.num_resizes == 1
    table.decide("admission", submit("two"), at_s=40.0)
    table.decide("allocator", at_s=40.0)
    after = baseline.seen["one"]
    assert (after.current_num_gpus, after.held_since_s) == (2, NOW_S + 30.0)
    assert (after.attained_gpu_seconds, after.num_resizes) == (140.0, 2)


def test_a_decision_is_a_function_of_the_ledger_alone() -> None:
    """Two ledgers with one history decide the same, and folding old messages again changes nothing."""
    tables = [Table(BASELINES["tiresias"], pool(8).state) for _ in range(2)]
    said = []
    for table in tables:
        table.decide("admission", submit("one"), submit("two"))
        said.append(table.decide("allocator", at_s=1.0))
        assert (
            table.policies["allocator"].evolve(table.books, Unreadable(on_plan=True), table.books.pool.sequence)
            is table.books
        )
    assert said[0] == said[1]
    assert said[0]
    assert tables[0].books == tables[1].books


def test_an_admission_without_a_promise_carries_no_schedule() -> None:
    table = Table(BASELINES["edf"], pool(8).state)
    (admitted,) = table.decide("admission", submit("one"))
    assert isinstance(admitted, JobAdmitted)
    assert (admitted.minimum_satisfactory_share, admitted.gpu_seconds) == ((), 0.0)
    assert table.decide("admission", submit("one")) == ()  # the same command again


def test_commands_that_arrive_together_are_decided_one_after_another() -> None:
    """Each needs all GPUs for half of the time until its deadline: two fit, a third does not."""
    table = Table(BASELINES["edf-admission"], pool(8, resize_cost_s=0.0).state)
    said = table.decide("admission", *(submit(name, max_iterations=400) for name in ("one", "two", "three")))
    assert [type(event) for event in said] == [JobAdmitted, JobAdmitted, JobRejected]
    assert said[2].reason == "deadline"


def test_a_job_of_unknown_throughput_is_rejected_and_a_cancelled_one_is_removed() -> None:
    table = Table(BASELINES["edf"], pool(8).state)
    (refused,) = table.decide("admission", submit("new", model_name="unknown"))
    assert (type(refused), refused.reason) == (JobRejected, "unrunnable")
    table.decide("admission", submit("one"))
    assert isinstance(table.decide("admission", CancelJob(job_id="one", tenant="other"))[0], events.CancelRejected)
    assert isinstance(table.decide("admission", CancelJob(job_id="one", tenant="lab"))[0], events.JobCancelled)
    (allocated,) = table.decide("allocator", at_s=1.0)
    assert isinstance(allocated, AllocationDecided)
    assert allocated.num_gpus_by_job == {}
    assert allocated.valid_until_s is None


def test_without_a_request_the_fewest_gpus_that_meet_the_deadline_are_assumed() -> None:
    baseline = Scripted()
    table = Table(baseline, pool(8).state, asked=2, unknown=0)
    due_s = NOW_S + 100.0
    for job_id, iterations in (("asked", 300), ("unknown", 300), ("hopeless", 5_000)):
        table.decide("admission", submit(job_id, max_iterations=iterations, deadline_s=due_s))
    free = replace(submit("free", job_class=JobClass.BEST_EFFORT, deadline_s=None))
    table.decide("admission", free)
    requested = {job_id: job.requested_num_gpus for job_id, job in baseline.seen.items()}
    assert requested == {
        "asked": 2,
        "unknown": 4,
        "hopeless": 1,
        "free": 1,
    }  # 300 iterations and 2 s of start


def test_curves_end_at_the_size_of_the_pool_and_shrink_with_a_lost_node() -> None:
    baseline = Scripted()
    table = Table(baseline, pool(4, 4).state)
    table.decide("admission", submit("one"))
    assert baseline.seen["one"].curve.num_gpus_L == tuple(LINEAR)
    table.fact(events.NodeLost(node_id="node-1", incarnation="first-1", reason="silent", at_s=NOW_S))
    table.decide("allocator", at_s=1.0)
    assert baseline.seen["one"].curve.num_gpus_L == (1, 2, 4)


def test_a_tenure_remembers_how_long_a_job_waited_and_what_it_had_attained() -> None:
    started = Tenure(held_since_s=100.0).change(4, 130.0)
    assert started.waits == (Wait(waited_s=30.0, attained_gpu_seconds=0.0),)
    grown = started.change(8, 140.0)
    assert grown.waits == started.waits
    again = grown.change(0, 150.0).change(2, 200.0)
    assert again.waits == (*started.waits, Wait(waited_s=50.0, attained_gpu_seconds=120.0))
