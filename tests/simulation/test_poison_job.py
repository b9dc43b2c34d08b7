"""A job whose start ends the executor: it takes at most two nodes along, then fails, and the other jobs go on.

If its workers end all executors of the pool at once, no node outlives another, and each time counts as a crash.
"""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.services.executor.decisions.local_events_and_actions import StartWorker
from elasticflow.shared.messages.events import JobFailed, NodeJoined, NodeLost
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.job import Phase
from elasticflow.simulator.pipeline.cluster import VirtualCluster
from elasticflow.simulator.pipeline.invariants import violations
from elasticflow.simulator.pipeline.nodes import VirtualNode
from testbed.scenarios import random_scenario
from testbed.simulated_runs import not_at_rest, run_to_rest
from tests.support.rings import few_daily

POISON = "job-02"
OUTAGE_S = 12.0  # longer than the monitor waits for a heartbeat


def was_without_nodes(cluster: VirtualCluster) -> bool:
    """Whether all nodes were gone at some time: no node outlived a start before that."""
    alive = set[str]()
    for entry in cluster.entries:
        match entry.message:
            case NodeJoined(node_id=node_id):
                alive.add(node_id)
            case NodeLost(node_id=node_id):
                alive.discard(node_id)
                if not alive:
                    return True
            case _:
                pass
    return False


@pytest.mark.parametrize("curves_known", [True, False])
@pytest.mark.parametrize("seed", few_daily(range(5), 2))
def test_a_job_that_ends_executors_takes_two_nodes_along(
    seed: int, curves_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[tuple[str, int]] = []
    act = VirtualNode._act

    def act_or_end(node: VirtualNode, action: Any) -> None:
        if isinstance(action, StartWorker) and action.worker.job_id == POISON:
            ended.append((node.node_id, action.worker.generation))
            node.crash(OUTAGE_S if seed % 2 else 0.5)
        else:
            act(node, action)

    monkeypatch.setattr(VirtualNode, "_act", act_or_end)
    scenario = random_scenario(seed, num_jobs=6, curves_known=curves_known)
    default = PoolConfig().max_nodes_lost_at_start
    scenario = replace(scenario, config=replace(scenario.config, max_nodes_lost_at_start=default))
    cluster = run_to_rest(scenario, seed)
    generations = {generation for _, generation in ended}
    took_all = any(len({node for node, of in ended if of == each}) == len(cluster.nodes) for each in generations)
    has_witnesses = not took_all and not was_without_nodes(cluster)
    assert len(generations) <= (default if has_witnesses else PoolConfig().max_restarts + 1)
    assert list(not_at_rest(cluster)) == []
    assert list(violations(cluster.entries)) == []
    failed = [entry.message for entry in cluster.entries if isinstance(entry.message, JobFailed)]
    others = [job for job in cluster.state.ended_jobs.values() if job.job_id != POISON]
    assert {event.job_id for event in failed} <= {POISON}
    assert all(job.phase in (Phase.FINISHED, Phase.REJECTED, Phase.CANCELLED) for job in others)
    if ended:
        assert cluster.state.ended_jobs[POISON].phase in (Phase.FAILED, Phase.CANCELLED)
