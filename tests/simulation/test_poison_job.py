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
from elasticflow.simulator.pipeline.invariants import violations
from elasticflow.simulator.pipeline.nodes import VirtualNode
from testbed.scenarios import random_scenario
from testbed.simulated_runs import not_at_rest, run_to_rest
from tests.support.rings import few_daily

POISON = "job-02"
OUTAGE_S = 12.0  # longer than the monitor waits for a heartbeat
CLOSE_S = 10.0  # far more than a lease
IN_FLIGHT = 2  # starts that were made before nodes without a witness are back, and count


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
    ended: list[End] = []
    outage_s = OUTAGE_S if seed % 2 else 0.5
    launch = VirtualNode._launch

    def launch_or_end(node: VirtualNode, start: Any) -> None:
        worker = start.action.worker
        if worker.job_id == POISON:
            ended.append(End(node._loop.now_s, node.node_id, worker.generation))
            node.crash(outage_s)
        else:
            launch(node, start)

    monkeypatch.setattr(VirtualNode, "_launch", launch_or_end)
    scenario = random_scenario(seed, num_jobs=6, curves_known=curves_known)
    default = PoolConfig().max_nodes_lost_at_start
    scenario = replace(scenario, config=replace(scenario.config, max_nodes_lost_at_start=default))
    cluster = run_to_rest(scenario, seed)
    generations = {end.generation for end in ended}
    have_witnesses = all_have_witnesses(ended, cluster.nodes, outage_s)
    assert len(generations) <= (default if have_witnesses else default + PoolConfig().max_restarts + IN_FLIGHT)
    assert list(not_at_rest(cluster)) == []
    assert list(violations(cluster.entries)) == []
    failed = [entry.message for entry in cluster.entries if isinstance(entry.message, JobFailed)]
    others = [job for job in cluster.state.ended_jobs.values() if job.job_id != POISON]
    assert {event.job_id for event in failed} <= {POISON}
    assert all(job.phase in (Phase.FINISHED, Phase.REJECTED, Phase.CANCELLED) for job in others)
    if ended:
        assert cluster.state.ended_jobs[POISON].phase in (Phase.FAILED, Phase.CANCELLED)
