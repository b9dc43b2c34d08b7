"""A job that trains on two nodes goes on on one of them when the other ends as announced, in a real pool."""

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from elasticflow.client.operator_decisions import announce_node_end
from elasticflow.shared.messages.events import (
    JobAdmitted,
    NodeDrainStarted,
    NodeEndNoticed,
    NodeLost,
    PlanDecided,
    WorkerCrashed,
)
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.state.job import Phase
from elasticflow.shared.state.pool import PoolState
from testbed.real_pool import CONFIG, POOL, job, running_pool, slowed_down
from tests.support.executor_process import executor_process

LEAVE_S = 20.0  # no worker starts for the drain: those that train stay
ENDS_IN_S = 35.0


def nodes_of_job(state: PoolState) -> set[str]:
    """On which workers of the job train, or stop."""
    job = state.live_jobs["a"]
    before = job.previous_generation.gpus if job.previous_generation is not None else ()
    return {gpu.node_id for gpu in (*job.gpus, *before)} | {stopping.node_id for stopping in job.stopping}


@pytest.mark.nightly("simulation/test_node_ends.py has the decisions, and test_cli_node.py a node that leaves")
@pytest.mark.parametrize("by", ["operator", "notice"])
async def test_a_job_goes_on_when_a_node_ends_and_keeps_its_promise(
    tmp_path: Path, by: Literal["operator", "notice"]
) -> None:
    notice = tmp_path / "end"
    config, slow_down = replace(CONFIG, leave_s=LEAVE_S), tmp_path / "slow_down"
    async with running_pool(tmp_path, num_nodes=0, replicas={}, config=config) as pool:
        with ExitStack() as stack:
            stack.enter_context(executor_process(pool.url, POOL, pool.data_dir, "stays"))
            until_notice = f"file:{notice}" if by == "notice" else ""
            leaving = stack.enter_context(
                executor_process(pool.url, POOL, pool.data_dir, "leaves", until_notice=until_notice)
            )
            await pool.when(lambda state: state.num_gpus == 4, "both nodes joined")
            assert isinstance(
                await pool.client.submit(slowed_down(job(max_iterations=600), slow_down), job_id="a"), JobAdmitted
            )
            await pool.when(
                lambda state: state.live_jobs["a"].training and nodes_of_job(state) == {"stays", "leaves"},
                "the job trains on both nodes",
            )
            if by == "operator":
                until_s = SystemClock().now_s() + ENDS_IN_S
                announced = await announce_node_end(pool.url, POOL, "leaves", until_s, SystemClock())
                assert announced.until_s == until_s
            else:
                notice.write_text(f"{ENDS_IN_S:.0f}s\n")
            moved = await pool.when(
                lambda state: nodes_of_job(state) == {"stays"}, "all workers are on the node that stays"
            )
            assert moved.nodes["leaves"].alive
            left = await pool.when(lambda state: state.nodes["leaves"].left, "the node left")
            assert nodes_of_job(left) == {"stays"}
            slow_down.unlink()
            assert await asyncio.to_thread(leaving.wait, 60) == 0
            ended = (await pool.ended(["a"])).ended_jobs["a"]
            assert (ended.phase, ended.restarts) == (Phase.FINISHED, 0)
            assert ended.ended_at_s is not None
            assert ended.deadline_s is not None
            assert ended.ended_at_s <= ended.deadline_s
            messages = [entry.message for entry in await pool.ledger()]
    events = [event for message in messages if isinstance(message, PlanDecided) for event in message.events]
    assert [event.node_id for event in events if isinstance(event, NodeDrainStarted)] == ["leaves"]
    assert len([message for message in messages if isinstance(message, NodeEndNoticed)]) == (by == "notice")
    assert not [message for message in messages if isinstance(message, WorkerCrashed)]
    assert [message.reason for message in messages if isinstance(message, NodeLost)][:1] == ["left"]
