"""What decisions cost, counted instead of timed: a change that needs much more work for the same decisions fails here.

The bounds are a fifth above the counts of today. A change that lowers a count lowers its bound, and one that must raise
it says in benchmarks/results/decisions.md what that buys.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.pipeline.cluster import CURVES
from benchmarks.pipeline.workload import submissions
from elasticflow.services.admission import policy
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.messages.events import JobAdmitted, NodeJoined, PlanDecided, PoolConfigured
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.scheduling.admission import admission_plan, admission_pricing, filling_trials
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.trace.simulated_pool import ClusterShape
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.workload.throughput_tables import NO_TYPE, read_throughputs
from elasticflow.simulator.workload.trace import read_trace
from elasticflow.simulator.workload.workload import bundled_throughputs, bundled_trace

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
    count(filling_trials.FillingTrials, "fill", lambda _: {"trials": 1})
    count(admission_pricing, "displaced_promises", lambda _: {"prices": 1})
    return counts


def fold(state: PoolState, *events: Any) -> PoolState:
    for event in events:
        state = ledger_fold.apply(state, event, state.sequence + 1)
    return state


def assert_at_most(work: Counter[str], **bounds: int) -> None:
    """Less than half of a bound is a count that nobody looks after: lower the bound."""
    found = {name: work[name] for name in bounds}
    assert {name: bound for name, bound in bounds.items() if found[name] > bound} == {}, found
    assert {name: bound for name, bound in bounds.items() if found[name] < bound / 2} == {}, found


def test_a_burst_of_submissions(work: Counter[str]) -> None:
    nodes = [
        NodeJoined(node_id=f"node-{number}", incarnation="paper", num_gpus=8, device="cuda", at_s=NOW_S)
        for number in range(8)
    ]
    configured = PoolConfigured(config=PoolConfig(curves=CURVES, resize_cost_s=2.0), at_s=NOW_S)
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
    assert_at_most(work, fillings=23_000, trials=300, prices=540, bytes=540_000)


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
    assert_at_most(work, fillings=9_200, trials=570, prices=130, decisions=550, events=550)
