"""Workers with unequal numbers of virtual nodes: the bits of one worker, and in the fast mode the same sums."""

import pytest
import pytest_asyncio
import torch

from elasticflow.shared.messages.worker_protocol.from_worker import (
    Failed,
    Interrupted,
    Progressed,
)
from tests.support.trained_jobs import all_switched, end_of, train, weights_of
from tests.training.test_resize import assert_each_sample_once_an_epoch, run_to_the_end

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAST = 40  # iterations


def stateful(spec_of, slow_down=""):
    """With batch norm, and 37 samples over 8 virtual nodes: each has four, or five in two micro-batches."""
    return spec_of("Stateful", global_batch_size=37, max_iterations=LAST, hyperparameters={"slow_down": slow_down})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def one_worker(node, spec_of):
    """The result of one undisturbed worker."""
    return await train(node, stateful(spec_of), micro_batch_size=4)


@pytest.mark.parametrize("counts", [(7, 1), (1, 5, 2), (0, 8), (3, 0, 5)], ids=str)
async def test_any_numbers_of_virtual_nodes_give_the_same_bits(node, spec_of, one_worker, counts):
    cut = {"micro_batch_size": 4, "virtual_nodes_by_rank": counts}
    assert await train(node, stateful(spec_of), num_workers=len(counts), **cut) == one_worker


async def test_switches_between_counts_and_a_loss_do_not_change_the_bits(each_node, spec_of, one_worker, slow_down):
    """The same workers with other counts, then one more worker; then the survivors of a kill divide evenly."""
    job_id = each_node.new_job_id()
    spec = stateful(spec_of, str(slow_down))
    workers = await each_node.launch(
        spec, job_id=job_id, num_workers=2, micro_batch_size=4, virtual_nodes_by_rank=(6, 2)
    )
    await workers.first(Progressed)
    for members, counts in (([0, 1], (1, 7)), ([0, 1, None], (0, 5, 3))):
        workers = await each_node.switch_generation(workers, members, micro_batch_size=4, virtual_nodes_by_rank=counts)
        switched = await all_switched(workers, members)
        assert 0 < switched.iteration < LAST
        assert (switched.resize.bytes_moved > 0) == (None in members)
    workers.workers[1].kill()
    for rank in (0, 2):
        await workers.first(Interrupted, rank)
    workers = await each_node.switch_generation(workers, [0, 2], lost=[1], micro_batch_size=4)
    await all_switched(workers, [0, 2])
    slow_down.unlink()
    assert await end_of(each_node, workers) == one_worker


async def test_a_straggler_that_is_relieved_left_out_and_back_changes_no_bits(
    each_node, spec_of, one_worker, slow_down
):
    """As placement decides it: fewer virtual nodes on the GPU of rank 0, then none, then even parts as before."""
    job_id = each_node.new_job_id()
    spec = stateful(spec_of, str(slow_down))
    workers = await each_node.launch(spec, job_id=job_id, num_workers=3, micro_batch_size=4)
    await workers.first(Progressed)
    for members, counts in (([0, 1, 2], (1, 4, 3)), ([1, 2], ()), ([None, 0, 1], ())):
        workers = await each_node.switch_generation(workers, members, micro_batch_size=4, virtual_nodes_by_rank=counts)
        switched = await all_switched(workers, members)
        assert 0 < switched.iteration < LAST
    slow_down.unlink()
    assert await end_of(each_node, workers) == one_worker


async def test_the_fast_mode_weights_unequal_parts_and_sees_each_sample_once_an_epoch(
    node, spec_of, tmp_path, slow_down
):
    """Two workers with 13 and 3 of 16 samples, then 4 and 12; then three with 10, 2 and 4, in micro-batches."""
    (record := tmp_path / "record").mkdir()
    settings = {"slow_down": str(slow_down), "learning_rate": 0.01, "record": str(record)}
    spec = spec_of("Fast", max_iterations=100, hyperparameters=settings)
    job_id = node.new_job_id()
    workers = await node.launch(spec, job_id=job_id, num_workers=2, virtual_nodes_by_rank=(13, 3))
    await workers.first(Progressed)
    for members, counts, micro_batch_size in (([0, 1], (1, 3), 0), ([1, 0, None], (5, 1, 2), 4)):
        workers = await node.switch_generation(
            workers, members, virtual_nodes_by_rank=counts, micro_batch_size=micro_batch_size
        )
        await all_switched(workers, members)
    slow_down.unlink()
    await workers.ended()
    plain = spec_of("Points", max_iterations=100, hyperparameters={"learning_rate": 0.01})
    undisturbed = await run_to_the_end(node, plain)
    torch.testing.assert_close(weights_of(node, job_id), undisturbed, rtol=5e-3, atol=1e-3)
    assert_each_sample_once_an_epoch(record, num_iterations=100)


@pytest.mark.parametrize("counts", [(7, 3), (0, 8, 2), (1, 9)], ids=str)
async def test_unequal_parts_of_a_batch_are_weighted_by_their_size(each_node, spec_of, counts):
    """Also where one worker has none: a mean of means would visibly differ after one step."""
    spec = spec_of("Fast", global_batch_size=10, max_iterations=3, hyperparameters={"learning_rate": 1.0})
    alone = await run_to_the_end(each_node, spec)
    together = await run_to_the_end(each_node, spec, num_workers=len(counts), virtual_nodes_by_rank=counts)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("function", "counts", "error"),
    [
        ("Points", (5, 2), "7 virtual nodes were placed, but the job has 8: place each of them once"),
        ("Fast", (16, 1), "17 virtual nodes were placed, but the global batch has 16 samples"),
    ],
)
async def test_counts_that_do_not_fit_the_job_are_named(node, spec_of, function, counts, error):
    workers = await node.launch(
        spec_of(function), job_id=node.new_job_id(), num_workers=2, virtual_nodes_by_rank=counts
    )
    assert error in (await workers.first(Failed)).error
    await workers.ended()
