"""Micro-batches: the same bits at any number of workers, and the same sums in the fast mode."""

import pytest
import torch

from elasticflow.shared.messages.worker_protocol.from_worker import (
    Failed,
    Interrupted,
    Progressed,
    Switched,
)
from tests.support.trained_jobs import end_of, switch, train, weights_of
from tests.training.test_resize import assert_each_sample_once_an_epoch, run_to_the_end

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_any_number_of_workers_gives_the_same_bits(each_node, spec_of):
    spec = spec_of("Stateful", global_batch_size=37, max_iterations=10)  # 4 or 5 samples each
    alone = await train(each_node, spec, micro_batch_size=4)
    assert await train(each_node, spec, num_workers=3, micro_batch_size=4) == alone
    assert await train(each_node, spec, num_workers=4, micro_batch_size=4) == alone


async def test_the_fast_mode_accumulates_and_sees_each_sample_once_an_epoch(node, spec_of, tmp_path, slow_down):
    """Two workers with eight samples each, in micro-batches; then four with four, whole; then two again."""
    (record := tmp_path / "record").mkdir()
    settings = {"slow_down": str(slow_down), "learning_rate": 0.01, "record": str(record)}
    spec = spec_of("Fast", max_iterations=100, hyperparameters=settings)
    job_id = node.new_job_id()
    workers = await node.launch(spec, job_id=job_id, num_workers=2, micro_batch_size=4)
    await workers.first(Progressed)
    workers = await switch(node, workers, [0, 1, None, None], [2, 0], micro_batch_size=4)
    slow_down.unlink()
    await workers.ended()
    plain = spec_of("Points", max_iterations=100, hyperparameters={"learning_rate": 0.01})
    undisturbed = await run_to_the_end(node, plain)
    torch.testing.assert_close(weights_of(node, job_id), undisturbed, rtol=5e-3, atol=1e-3)
    assert_each_sample_once_an_epoch(record, num_iterations=100)


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_the_same_processes_retry_with_smaller_micro_batches(node, spec_of, num_workers):
    """16 samples over 8 virtual nodes fit one by one, with the bits of a job that was cut so from its start."""
    job_id = node.new_job_id()
    spec = spec_of("TooBig", max_iterations=10, hyperparameters={"fits": 1})
    workers = await node.launch(spec, job_id=job_id, num_workers=num_workers)
    interrupted = await workers.first(Interrupted, rank=0)
    assert (interrupted.iteration, interrupted.micro_batch_size) == (0, 2)
    workers = await node.switch_generation(workers, range(num_workers), micro_batch_size=1)
    assert (await workers.first(Switched)).iteration == 0
    assert await end_of(node, workers) == await train(node, spec, micro_batch_size=1)


@pytest.mark.parametrize("function", ["TooBig", "ErrorOfTheAllocator"])
async def test_a_profiling_run_without_memory_waits_to_be_stopped(node, spec_of, function):
    spec = spec_of(function, hyperparameters={"fits": 1})
    workers = await node.launch(spec, job_id=node.new_job_id(), purpose="profile")
    assert (await workers.first(Interrupted)).micro_batch_size == 2
    for worker in workers.workers.values():
        worker.kill()
    await workers.ended()


async def test_a_single_sample_that_exceeds_the_memory_fails_the_job(node, spec_of):
    spec = spec_of("TooBig", global_batch_size=8, hyperparameters={"fits": 0})
    workers = await node.launch(spec, job_id=node.new_job_id())
    failed = await workers.first(Failed)
    assert failed.error.startswith("a single sample exceeds the memory in iteration 0: CUDA out of")
    assert "use a smaller model, recompute activations" in failed.error
    await workers.ended()
