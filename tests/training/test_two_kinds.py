"""Workers with two kinds of device: the same samples, and the weights of one worker up to rounding, through resizes.

Each generation trains for longer than the steps between two comparisons of its workers' tensors.
"""

import pytest
import torch

from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode, Interrupted, Progressed
from testbed.worker_nodes import Lineup
from tests.support.trained_jobs import all_switched, weights_of
from tests.training.test_resize import assert_each_sample_once_an_epoch, run_to_the_end

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAST = 75  # iterations
COMPARED_EVERY = 5


def two_kinds(spec_of, function, record, slow_down):
    settings = {"slow_down": str(slow_down), "record": str(record), "learning_rate": 0.01}
    settings |= {"compared_every": COMPARED_EVERY, "slow_down_s": 0.0001}
    return spec_of(f"two_kinds:{function}", max_iterations=LAST, hyperparameters=settings)


async def switched_and_compared(node, workers, members, **more):
    """The next generation, after its workers have compared their tensors."""
    workers = await node.switch_generation(workers, members, **more)
    first = (await all_switched(workers, members)).iteration
    while not any(each.iteration > first + COMPARED_EVERY for each in workers.all_of(Progressed)):
        await workers.next_event()
    return workers


async def assert_ends_as_one_worker(node, spec_of, workers) -> None:
    assert {exit_.code for exit_ in (await workers.ended()).values()} == {ExitCode.DONE}
    spec = spec_of("Points", max_iterations=LAST, hyperparameters={"learning_rate": 0.01})
    alone, trained = await run_to_the_end(node, spec), weights_of(node, workers.workers[0].assignment.job_id)
    torch.testing.assert_close(trained, alone, rtol=1e-3, atol=1e-4)
    assert not torch.equal(trained, alone), "some workers compute other bits"


@pytest.mark.parametrize("function", ["TwoKinds", "TwoKindsAndFast"])
async def test_workers_of_two_kinds_join_and_leave(node, spec_of, tmp_path, slow_down, function):
    """The kind follows from a worker's first rank: both, then one more of the first, the first alone, and both."""
    spec = two_kinds(spec_of, function, record := tmp_path / "record", slow_down)
    record.mkdir()
    workers = await node.launch(spec, job_id=node.new_job_id(), num_workers=2)
    await workers.first(Progressed)
    for members in ([1, 0, None], [1, 2], [1, 0, None, None]):
        workers = await switched_and_compared(node, workers, members)
    slow_down.unlink()
    await assert_ends_as_one_worker(node, spec_of, workers)
    assert_each_sample_once_an_epoch(record, num_iterations=LAST)


async def test_survivors_of_two_kinds_continue_from_the_interrupted_step(node, spec_of, slow_down):
    spec = two_kinds(spec_of, "TwoKindsAndFast", "", slow_down)
    workers = await node.launch(spec, job_id=node.new_job_id(), num_workers=3)
    await workers.first(Progressed)
    workers.workers[2].kill()
    for rank in (0, 1):
        await workers.first(Interrupted, rank)
    workers = await switched_and_compared(node, workers, [1, 0, None], lost=[2])
    slow_down.unlink()
    await assert_ends_as_one_worker(node, spec_of, workers)


async def test_a_job_moves_to_workers_of_another_kind(node, spec_of, tmp_path, slow_down):
    """The second worker is of another kind; the first leaves, and a worker of its kind joins."""
    spec = two_kinds(spec_of, "TwoKinds", record := tmp_path / "record", slow_down)
    record.mkdir()
    workers = await node.launch(spec, job_id=node.new_job_id(), num_workers=1)
    await workers.first(Progressed)
    for members in ([0, None], [1], [None, 0]):
        workers = await switched_and_compared(node, workers, members)
    slow_down.unlink()
    await assert_ends_as_one_worker(node, spec_of, workers)
    assert_each_sample_once_an_epoch(record, num_iterations=LAST)


@pytest.mark.gpu
@pytest.mark.parametrize("function", ["HeldBack", "HeldBackAndFast"])
async def test_a_job_moves_from_a_cpu_slot_to_a_gpu_and_back(node, spec_of, tmp_path, slow_down, function):
    """By way of generations with both."""
    spec = two_kinds(spec_of, function, record := tmp_path / "record", slow_down)
    record.mkdir()
    workers = await node.launch(spec, job_id=node.new_job_id(), lineup=Lineup(devices=("cpu",)))
    await workers.first(Progressed)
    for members, joining in (([0, None], "cuda"), ([1], None), ([None, 0], "cpu")):
        workers = await switched_and_compared(node, workers, members, device=joining)
    slow_down.unlink()
    await assert_ends_as_one_worker(node, spec_of, workers)
    assert_each_sample_once_an_epoch(record, num_iterations=LAST)
