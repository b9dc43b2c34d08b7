"""A promised job makes room for another one's block in a real pool: it migrates while it trains."""

from dataclasses import replace
from pathlib import Path

import pytest

from elasticflow.shared.messages.events import GenerationStarted, JobAdmitted, PlacementDecided, PlanDecided
from elasticflow.shared.state.job import Phase
from elasticflow.shared.state.pool import PoolState
from testbed.real_pool import CONFIG, RATES, RunningPool, job, running_pool, slowed_down

APART = {2: RATES[2] / 4}  # iterations/s on two nodes


def nodes_of(state: PoolState, job_id: str) -> set[str]:
    return {gpu.node_id for gpu in state.live_jobs[job_id].gpus}


async def trains_on_one_gpu(pool: RunningPool, job_id: str, slow_down: Path) -> None:
    spec = slowed_down(job(max_iterations=600, max_gpus=1), slow_down)
    assert isinstance(await pool.client.submit(spec, job_id=job_id), JobAdmitted)
    await pool.when(lambda state: state.live_jobs[job_id].training, f"{job_id} trains")


@pytest.mark.nightly("unit/services/placement/test_policy.py has the decisions")
async def test_a_job_that_trains_moves_for_the_block_of_another_and_both_keep_their_promises(tmp_path: Path) -> None:
    """One GPU of each node is free: a pair on both would have a quarter of the speed that it is promised."""
    slow_down = tmp_path / "slow_down"
    config = replace(CONFIG, curves={**CONFIG.curves, "steps/b8@cluster": APART}, admission="first-come")
    async with running_pool(tmp_path, num_nodes=2, replicas={}, config=config) as pool:
        for job_id in ("a", "b", "c"):
            await trains_on_one_gpu(pool, job_id, slow_down)
        before = await pool.when(lambda state: len(state.live_jobs) == 3, "three jobs train")
        paired = next(each for each in ("a", "b") if nodes_of(before, each) != nodes_of(before, "c"))
        await pool.client.cancel(paired)
        await pool.ended([paired])
        pair = slowed_down(job(max_iterations=600, min_gpus=2, max_gpus=2), slow_down)
        assert isinstance(await pool.client.submit(pair, job_id="pair"), JobAdmitted)
        together = await pool.when(lambda state: state.live_jobs["pair"].training, "the pair trains")
        assert len(nodes_of(together, "pair")) == 1
        slow_down.unlink()
        stayed = [each for each in ("a", "b", "c") if each != paired]
        ended = (await pool.ended([*stayed, "pair"])).ended_jobs
        messages = [entry.message for entry in await pool.ledger()]
    for job_id in (*stayed, "pair"):
        end = ended[job_id]
        assert (end.phase, end.restarts) == (Phase.FINISHED, 0)
        assert end.ended_at_s is not None
        assert end.deadline_s is not None
        assert end.ended_at_s <= end.deadline_s
    events = [event for message in messages if isinstance(message, PlanDecided) for event in message.events]
    (moved,) = [event for event in events if isinstance(event, PlacementDecided) and event.migrated]
    (job_id,) = moved.migrated
    assert [placed.job_id for placed in moved.placements] == [job_id], "in a turn of its own, so that it does not stop"
    starts = [message for message in messages if isinstance(message, GenerationStarted) and message.job_id == job_id]
    assert len(starts) == 2
    assert starts[1].iteration > 0
