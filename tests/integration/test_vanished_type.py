"""A real pool of two GPU types, in which the type that a promise rests on vanishes while the job trains."""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from elasticflow.shared.messages.events import GpuTypeChanged, JobAdmitted, JobAmended, JobAtRisk, PlanDecided
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState, spec_of
from testbed.real_pool import POOL, RATES, RunningPool, job, running_pool
from tests.support.executor_process import executor_process

SLOW = "cpu-0.25"
SLOWER = {num_gpus: rate / 4 for num_gpus, rate in RATES.items()}
CONFIG = PoolConfig(resize_cost_s=1.0, throughput_margin=0.5, curves={"steps/b8": RATES, f"steps/b8@{SLOW}": SLOWER})


class Nodes:
    """Executors by node. `start` replaces a node that was killed."""

    def __init__(self, pool: RunningPool, stack: ExitStack) -> None:
        self._pool, self._stack = pool, stack

    def start(self, node_id: str, cpu_share: str) -> ExitStack:
        """Close what it returns to kill the node."""
        node = self._stack.enter_context(ExitStack())
        pool = self._pool
        node.enter_context(executor_process(pool.url, POOL, pool.data_dir, node_id, slots=2, cpu_share=cpu_share))
        return node


@asynccontextmanager
async def training_on_fast(tmp_path: Path) -> AsyncIterator[tuple[RunningPool, Nodes, ExitStack]]:
    """A promised job that trains on the fast node, because it was alone when the job came. A slow one joined since."""
    async with running_pool(tmp_path, num_nodes=0, replicas={}, config=CONFIG) as pool:
        with ExitStack() as stack:
            nodes = Nodes(pool, stack)
            fast = nodes.start("fast", "1")
            await pool.when(lambda state: state.num_gpus == 2, "the fast node joined")
            assert isinstance(await pool.client.submit(job(max_iterations=10_000), job_id="a"), JobAdmitted)
            nodes.start("slow", "0.25")
            await pool.when(lambda state: state.num_gpus == 4, "the slow node joined")
            await pool.when(lambda state: state.live_jobs["a"].iteration > 20, "the job trains")
            yield pool, nodes, fast


async def ended_on_slow(pool: RunningPool) -> Job:
    """The job trains on the other type, and is amended to end there soon. It has as many iterations as amended."""

    def trains_there(state: PoolState) -> bool:
        return state.live_jobs["a"].training and spec_of(state.live_jobs["a"]).gpu_type == SLOW

    state = await pool.when(trains_there, "it trains on the other type")
    most = state.live_jobs["a"].iteration + 200
    assert isinstance(await pool.client.amend("a", max_iterations=most), JobAmended)
    ended = (await pool.ended(["a"])).ended_jobs["a"]
    assert (ended.phase, ended.iteration, spec_of(ended).gpu_type) == (Phase.FINISHED, most, SLOW)
    return ended


@pytest.mark.nightly("simulation/test_vanished_type.py has the decisions")
async def test_a_promise_on_a_vanished_type_is_kept_on_another(tmp_path: Path) -> None:
    async with training_on_fast(tmp_path) as (pool, _, fast):
        fast.close()
        ended = await ended_on_slow(pool)
        entries = await pool.ledger()
    reported = [entry.message for entry in entries]
    decided = [event for message in reported if isinstance(message, PlanDecided) for event in message.events]
    assert any(isinstance(event, JobAtRisk) for event in reported)
    (changed,) = (event for event in decided if isinstance(event, GpuTypeChanged))
    assert (changed.gpu_type, changed.explanation) == (SLOW, "the pool has 0 GPUs of type cpu-1 now")
    assert (ended.ended_at_s or 0.0) < (ended.deadline_s or 0.0)


@pytest.mark.nightly("simulation/test_vanished_type.py has the decisions")
async def test_a_node_that_comes_back_with_another_type_keeps_no_promise_of_the_first(tmp_path: Path) -> None:
    async with training_on_fast(tmp_path) as (pool, nodes, fast):
        fast.close()
        nodes.start("fast", "0.25")
        await pool.when(lambda state: state.nodes["fast"].gpu_type == SLOW, "the node came back with another type")
        await ended_on_slow(pool)
        assert (await pool.client.state()).gpu_types == ("cpu-1", SLOW)
