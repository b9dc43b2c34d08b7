"""Installations that take longer than a job may go without a step, on the virtual cluster."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import JobFailed, WorkerCrashed
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.job import Phase
from elasticflow.simulator.pipeline.cluster import Arrival, Scenario
from elasticflow.simulator.pipeline.nodes import VirtualNode
from testbed.simulated_runs import problems, random_scenario, run_to_rest

INSTALL_S = 400.0  # the pool gives a job 120 s without a step


def scenario(seed: int, *, curves_known: bool, num_nodes: int = 2) -> Scenario:
    """Every job requires packages."""
    base = random_scenario(seed, num_jobs=4, num_nodes=num_nodes, curves_known=curves_known)

    def requiring(arrival: Arrival) -> Arrival:
        command = arrival.command
        if not isinstance(command, SubmitJob):
            return arrival
        deadline_in_s = None if command.spec.deadline_in_s is None else command.spec.deadline_in_s + 8 * INSTALL_S
        spec = replace(command.spec, requirements=("einops",), deadline_in_s=deadline_in_s)
        return replace(arrival, command=replace(command, spec=spec))

    timing_model = replace(base.timing_model, install_s=INSTALL_S)
    return replace(base, timing_model=timing_model, arrivals=tuple(map(requiring, base.arrivals)))


@pytest.mark.parametrize(("seed", "curves_known"), [(1, True), (2, False)])
def test_jobs_with_a_slow_installation_train(seed: int, curves_known: bool) -> None:
    cluster = run_to_rest(scenario(seed, curves_known=curves_known), seed, longest_s=20_000.0)
    assert list(problems(cluster)) == []
    failed = [entry.message for entry in cluster.entries if isinstance(entry.message, JobFailed | WorkerCrashed)]
    assert failed == []
    assert any(job.phase is Phase.FINISHED for job in cluster.state.ended_jobs.values())


def test_without_a_word_of_the_node_the_jobs_are_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the heartbeats are for."""
    monkeypatch.setattr(VirtualNode, "preparing", ())
    cluster = run_to_rest(scenario(1, curves_known=True), 1, longest_s=20_000.0)
    failed = [entry.message for entry in cluster.entries if isinstance(entry.message, JobFailed)]
    assert failed
    assert all("it did not start to train" in event.error for event in failed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_job_goes_on_after_two_nodes_were_lost_for_good_while_they_prepared_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start is lost only where a worker ran (docs/adr/0096)."""
    lost, launch = dict[int, str](), VirtualNode._launch

    def launch_and_end(node: VirtualNode, start: Any) -> None:
        launch(node, start)
        job_id, generation, _ = start.action.worker
        if job_id == "job-00" and len(lost) < 2 and generation not in lost:
            lost[generation] = node.node_id
            node._loop.after(20.0, lambda: node.crash(1e9))  # after some heartbeats

    monkeypatch.setattr(VirtualNode, "_launch", launch_and_end)
    base = scenario(seed, curves_known=True, num_nodes=5)
    config = replace(base.config, max_nodes_lost_at_start=PoolConfig().max_nodes_lost_at_start)
    cluster = run_to_rest(replace(base, config=config), seed, longest_s=20_000.0)
    assert len({*lost.values()}) == 2
    assert list(problems(cluster)) == []
    assert [entry.message for entry in cluster.entries if isinstance(entry.message, JobFailed)] == []
    assert cluster.state.ended_jobs["job-00"].phase is Phase.FINISHED
