"""What decisions cost, counted instead of timed: a change that needs much more work for the same decisions fails here.

The bounds are a fifth above the counts of today. A change that lowers a count lowers its bound, and one that must raise
it says in benchmarks/results/decisions.md what that buys.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.pipeline.cluster import CURVES, submissions
from elasticflow.services.admission import policy
from elasticflow.shared.messages import codec
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import GenerationStarted, JobAdmitted, NodeJoined, PlanDecided, PoolConfigured
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.scheduling.admission import admission_plan, admission_pricing, admission_search
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state import ledger_chain
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.pipeline.cluster import Arrival, Scenario, VirtualCluster
from elasticflow.simulator.pipeline.virtual_workers import TimingModel
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.workload.throughput_tables import NO_TYPE, read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import ClusterShape, bundled_throughputs, bundled_trace
from testbed.simulated_runs import services

NOW_S = 1_000.0
TOGETHER = 250  # submissions of one decision


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts of what the loops of the planner do from now on."""
    counts = Counter[str]()

    def count(owner: Any, name: str, what: Callable[[Any], dict[str, int]]) -> None:
        counted = getattr(owner, name)

        def calls(*arguments: Any, **named: Any) -> Any:
            result = counted(*arguments, **named)
            counts.update(what(result))
            return result

        monkeypatch.setattr(owner, name, calls)

    count(admission_plan, "fill_anew", lambda result: {"fillings": result[1]})
    count(admission_search.FillingTrials, "fill", lambda _: {"trials": 1})
    count(admission_pricing, "displaced_promises", lambda _: {"prices": 1})
    count(codec, "encode", lambda _: {"encodings": 1})
    count(ledger_chain.LedgerChain, "add", lambda _: {"folds": 1})
    return counts


def fold(state: PoolState, *events: Any) -> PoolState:
    for event in events:
        state = ledger_fold.apply(state, event, state.sequence + 1)
    return state


def assert_at_most(work: Counter[str], **bounds: int) -> None:
    """A count of less than half of its bound fails too: the bound must then be lowered."""
    found = {name: work[name] for name in bounds}
    assert {name: bound for name, bound in bounds.items() if found[name] > bound} == {}, found
    assert {name: bound for name, bound in bounds.items() if found[name] < bound / 2} == {}, found


def test_a_burst_of_submissions(work: Counter[str]) -> None:
    nodes = [
        NodeJoined(node_id=f"node-{number}", incarnation="paper", num_gpus=8, device="cuda", at_s=NOW_S)
        for number in range(8)
    ]
    configured = PoolConfigured(config=PoolConfig(curves=CURVES, resize_cost_s=2.0, stop_free=True), at_s=NOW_S)
    state, cache = fold(PoolState(config=PoolConfig()), configured, *nodes), PlanningCache()
    jobs = submissions(500)
    for first in range(0, len(jobs), TOGETHER):
        now_s = NOW_S + first
        events = policy.decide(state, tuple(jobs[first : first + TOGETHER]), now_s, cache)
        decision = PlanDecided(service="admission", based_on=state.sequence, now_s=now_s, events=events)
        work["bytes"] += len(codec.encode(decision, id="decision", recorded_at_s=now_s))
        work["admitted"] += sum(isinstance(event, JobAdmitted) for event in events)
        state = fold(state, *events)
    assert work["admitted"] >= 150
    assert_at_most(work, fillings=23_000, trials=370, prices=540, bytes=540_000)


class Counting:
    """An observer of a simulation."""

    def __init__(self, work: Counter[str]) -> None:
        self.work = work

    def decided(self, before: PoolState, events: tuple[Any, ...], now_s: float) -> None:
        self.work.update(decisions=1, events=len(events))


def test_a_day_of_jobs(work: Counter[str]) -> None:
    jobs = read_trace(
        bundled_trace("small"), read_throughputs(bundled_throughputs(), (NO_TYPE,)), skip_bad=False, seed=0
    )
    run = SimulatedRun(workload=jobs, cluster=ClusterShape(num_nodes=2, gpus_per_node=8))
    result = run.simulation(Counting(work)).run()
    assert result.partial is False
    assert_at_most(work, fillings=9_200, trials=570, prices=130, decisions=800, events=810)


def test_a_resize(work: Counter[str]) -> None:
    """A job on the four GPUs of two nodes gives two of them to a second one: what all services publish and fold."""
    curve = {1: 1.0, 2: 1.9, 4: 3.4}
    first, second = (
        SubmitJob(
            job_id=job_id,
            tenant="lab",
            spec=JobSpec(
                training_function="paper:trained",
                model_name="model",
                global_batch_size=64,
                max_iterations=10_000,
                job_class=JobClass.BEST_EFFORT,
            ),
        )
        for job_id in ("first", "second")
    )
    scenario = Scenario(
        num_gpus_by_node={"one": 2, "two": 2},
        config=PoolConfig(curves={"model/b64": curve}),
        timing_model=TimingModel(true_curves={"model/b64": curve}),
        arrivals=(Arrival(at_s=10.0, command=first), Arrival(at_s=60.0, command=second)),
        num_replicas={},
    )
    with VirtualCluster(scenario, services, seed=0) as cluster:
        cluster.run(59.0)
        num_before = len(cluster.records)
        work.clear()
        cluster.run(64.0)
        records, entries = cluster.records[num_before:], cluster.entries[num_before:]
    started = [entry.message.job_id for entry in entries if isinstance(entry.message, GenerationStarted)]
    assert sorted(started) == ["first", "second"]
    work.update(messages=len(records), bytes=sum(len(record.data) for record in records))
    assert_at_most(work, messages=13, bytes=4_500, folds=80, encodings=53)
