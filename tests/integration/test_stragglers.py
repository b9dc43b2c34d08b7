"""A worker that is slow in a full pool: its job goes on without it, and as before once its GPU counts as healthy."""

from dataclasses import replace
from pathlib import Path

import pytest

from elasticflow.shared.messages.events import GenerationStarted, JobAdmitted, PlacementDecided, PlanDecided
from elasticflow.shared.state.pool import PoolState, slow_gpu
from testbed.real_pool import CONFIG, job, running_pool

EVENLY = 4  # workers: all GPUs of the pool, of two samples each
RATES = {1: 6.0, 2: 11.0, 4: 20.0}  # iterations/s of 20 ms for each of eight samples
CONFIGURED = replace(CONFIG, curves={"one-is-slow/b8": RATES}, slow_gpu_s=75.0)  # a job settles for a minute first


@pytest.mark.nightly("simulation/test_stragglers.py has the decisions, training/test_uneven_workers.py the workers")
async def test_a_job_goes_on_without_a_slow_worker_in_a_full_pool_and_with_its_gpu_once_that_is_healthy(
    tmp_path: Path,
) -> None:
    """With eight times as long for each sample, one on the slow GPU takes longer than three on another."""
    spec = job(
        training_function="testbed.user_code.tiny_jobs:OneIsSlow",
        model_name="one-is-slow",
        max_iterations=20_000,
        hyperparameters={"step_s": 0.0, "sample_s": 0.02, "delay_s": 0.14, "taken": str(tmp_path / "taken")},
    )
    async with running_pool(tmp_path, num_nodes=2, replicas={}, config=CONFIGURED) as pool:
        assert isinstance(await pool.client.submit(spec, job_id="job"), JobAdmitted)

        def trains_on(state: PoolState, num_gpus: int) -> bool:
            here = state.live_jobs["job"]
            return here.training and len(here.gpus) == num_gpus

        before = await pool.when(lambda state: trains_on(state, EVENLY), "the job has all GPUs")
        relieved = await pool.when(lambda state: trains_on(state, EVENLY - 1), "the slow GPU is left out")
        without = relieved.live_jobs["job"]
        (left_out,) = set(before.live_jobs["job"].gpus) - set(without.gpus)
        assert slow_gpu(relieved, left_out) is not None
        assert set(without.reserved_gpus) == set(before.live_jobs["job"].gpus), "the share is the same"
        assert without.predicted_speedup > 1.0
        again = await pool.when(lambda state: trains_on(state, EVENLY), "the GPU takes part again")
        assert set(again.live_jobs["job"].gpus) == set(before.live_jobs["job"].gpus)
        assert again.live_jobs["job"].predicted_speedup == 0.0, "with even parts"
        await pool.client.cancel("job")
        ended = (await pool.ended(["job"])).ended_jobs["job"]
        messages = [entry.message for entry in await pool.ledger()]
    assert ended.restarts == 0
    starts = [message for message in messages if isinstance(message, GenerationStarted) and message.resize is not None]
    on_three = [each for each in starts if each.num_gpus == EVENLY - 1]
    assert on_three, "the workers went on without a stop"
    assert starts[-1].num_gpus == EVENLY
    assert starts[-1].iteration > on_three[0].iteration > 0
    decided = [event for message in messages if isinstance(message, PlanDecided) for event in message.events]
    assert sum(isinstance(event, PlacementDecided) for event in decided) >= 3
