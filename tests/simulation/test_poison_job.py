"""A job whose start ends the executor: it takes at most two nodes along, then fails, and the other jobs go on.

If its workers end all executors of the pool at once, no node outlives another, and each time counts as a crash.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from elasticflow.shared.messages.events import JobFailed
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.job import Phase
from elasticflow.simulator.pipeline.cluster import Scenario, VirtualCluster
from elasticflow.simulator.pipeline.invariants import violations
from elasticflow.simulator.pipeline.nodes import VirtualNode
from testbed.simulated_runs import not_at_rest, random_scenario, run_to_rest
from tests.support.rings import few_daily

POISON = "job-02"
OUTAGE_S = 12.0  # longer than the monitor waits for a heartbeat
CLOSE_S = 10.0  # far more than a lease
BESIDE = (
    (8, False),
    (12, True),
    (15, True),
    (20, False),
    (21, True),
    (22, True),
    (29, False),
    (34, False),
    (39, False),
)


class End(NamedTuple):
    """The job has ended a node by a start of this generation."""

    at_s: float
    node_id: str
    generation: int


def all_have_witnesses(ends: list[End], node_ids: Iterable[str], outage_s: float) -> bool:
    """Whether another node certainly outlived the first end of each generation: it was there long before and after."""
    others = {node_id: [end.at_s for end in ends if end.node_id == node_id] for node_id in node_ids}
    first = {end.generation: end for end in reversed(ends)}
    return all(
        any(
            node_id != end.node_id and not any(-outage_s - CLOSE_S < at_s - end.at_s < CLOSE_S for at_s in ended_s)
            for node_id, ended_s in others.items()
        )
        for end in first.values()
    )


@pytest.mark.parametrize("curves_known", [True, False])
@pytest.mark.parametrize("seed", few_daily(range(5), 2))
def test_a_job_that_ends_executors_takes_two_nodes_along(
    seed: int, curves_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = random_scenario(seed, num_jobs=6, curves_known=curves_known)
    cluster, ended = run_with_poison(scenario, seed, monkeypatch, others_crash=False)
    assert_only_the_poison_job_fails(cluster, ended, seed)


@pytest.mark.parametrize("others_crash", [True, False])
@pytest.mark.parametrize(("seed", "curves_known"), few_daily(BESIDE, 2))
def test_a_job_that_starts_beside_it_again_and_again_goes_on(
    seed: int, curves_known: bool, others_crash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs come within a second or two, so that many starts are on one node, and a worker of each crashes once."""
    scenario = random_scenario(seed, num_jobs=6, curves_known=curves_known, mean_gap_s=0.3)
    cluster, ended = run_with_poison(scenario, seed, monkeypatch, others_crash=others_crash)
    assert ended
    assert_only_the_poison_job_fails(cluster, ended, seed)


def run_with_poison(
    scenario: Scenario, seed: int, monkeypatch: pytest.MonkeyPatch, *, others_crash: bool
) -> tuple[VirtualCluster, list[End]]:
    """others_crash: the first worker of each other job ends by itself, once."""
    ended, crashed, launch = list[End](), set[str](), VirtualNode._launch

    def launch_or_end(node: VirtualNode, start: Any) -> None:
        worker = start.action.worker
        if worker.job_id == POISON:
            ended.append(End(node._loop.now_s, node.node_id, worker.generation))
            node.crash(outage_of(seed))
            return
        launch(node, start)
        if others_crash and worker.rank == 0 and worker.job_id not in crashed:
            crashed.add(worker.job_id)
            node._environment.kill(worker)

    monkeypatch.setattr(VirtualNode, "_launch", launch_or_end)
    config = replace(scenario.config, max_nodes_lost_at_start=PoolConfig().max_nodes_lost_at_start)
    return run_to_rest(replace(scenario, config=config), seed), ended


def outage_of(seed: int) -> float:
    return OUTAGE_S if seed % 2 else 0.5


def assert_only_the_poison_job_fails(cluster: VirtualCluster, ended: list[End], seed: int) -> None:
    generations = {end.generation for end in ended}
    have_witnesses = all_have_witnesses(ended, cluster.nodes, outage_of(seed))
    default = PoolConfig().max_nodes_lost_at_start
    assert len(generations) <= (default if have_witnesses else default + PoolConfig().max_restarts)
    assert list(not_at_rest(cluster)) == []
    assert list(violations(cluster.entries)) == []
    failed = [entry.message for entry in cluster.entries if isinstance(entry.message, JobFailed)]
    others = [job for job in cluster.state.ended_jobs.values() if job.job_id != POISON]
    assert {event.job_id for event in failed} <= {POISON}
    assert all(job.phase in (Phase.FINISHED, Phase.REJECTED, Phase.CANCELLED) for job in others)
    if ended:
        assert cluster.state.ended_jobs[POISON].phase in (Phase.FAILED, Phase.CANCELLED)
