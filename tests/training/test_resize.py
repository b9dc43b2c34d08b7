"""A resized job ends with the weights of an unresized one, having seen each sample once an epoch."""

import os
import signal
from pathlib import Path

import pytest
import torch

from benchmarks.engine.transports import TransportName
from elasticflow.shared.messages.job_spec import MetricCondition
from elasticflow.shared.messages.worker_protocol.from_worker import (
    Alive,
    CheckpointWritten,
    ExitCode,
    Finished,
    Profiled,
    Progressed,
    Started,
)
from elasticflow.shared.messages.worker_protocol.to_worker import WriteCheckpoint
from testbed.worker_nodes import Lineup
from tests.support.rings import few_daily
from tests.support.trained_jobs import checkpoint_of, weights_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

STEP_S = {"Points": 0.004, "Fast": 0.016}  # of each part of a batch: a worker has several, or one
TOLERANCE = {"Points": {"rtol": 0.0, "atol": 0.0}, "Fast": {"rtol": 5e-3, "atol": 1e-3}}


async def run_to_the_end(node, spec, **launch) -> torch.Tensor:
    job_id = node.new_job_id()
    workers = await node.launch(spec, job_id=job_id, **launch)
    exits = await workers.ended()
    assert {exit_.code for exit_ in exits.values()} == {ExitCode.DONE}, node.log_of(job_id)
    return weights_of(node, job_id)


@pytest.mark.parametrize(
    ("function", "each_node"),
    few_daily([("Points", TransportName.GLOO), ("Fast", TransportName.ASYNCHRONOUS), ("Fast", TransportName.GLOO)], 2),
    indirect=["each_node"],
)
async def test_two_then_four_then_one_worker_end_with_the_weights_of_one_worker(each_node, spec_of, tmp_path, function):
    settings = {"step_s": STEP_S[function], "record": str(tmp_path)}
    spec = spec_of(function, max_iterations=100, hyperparameters=settings)
    job_id = each_node.new_job_id()
    iteration = 0
    for generation, num_workers in ((1, 2), (2, 4)):
        workers = await each_node.launch(spec, job_id=job_id, num_workers=num_workers, generation=generation)
        assert (await workers.first(Started)).iteration == iteration
        await workers.first(Progressed)
        workers.stop()
        exits = await workers.ended()
        assert {exit_.code for exit_ in exits.values()} == {ExitCode.DONE}
        iteration = (await workers.first(CheckpointWritten)).iteration
    workers = await each_node.launch(spec, job_id=job_id, generation=3)
    assert 0 < (await workers.first(Started)).iteration == iteration < 100
    assert (await workers.first(Finished)).iteration == 100
    await workers.ended()

    undisturbed = await run_to_the_end(each_node, spec_of("Points", max_iterations=100))
    moved = weights_of(each_node, job_id)
    torch.testing.assert_close(moved, undisturbed, **TOLERANCE[function])
    assert_each_sample_once_an_epoch(tmp_path, num_iterations=100)


def assert_each_sample_once_an_epoch(record: Path, *, num_iterations: int) -> None:
    """Batches of 16 out of 50 samples: eight epochs are 25 batches."""
    seen: dict[int, list[int]] = {}
    for file in record.iterdir():
        for line in file.read_text().splitlines():
            iteration, *numbers = (int(word) for word in line.split())
            seen.setdefault(iteration, []).extend(numbers)
    assert sorted(seen) == list(range(num_iterations))
    assert {len(numbers) for numbers in seen.values()} == {16}
    for start in range(0, num_iterations, 25):
        eight_epochs = [number for i in range(start, start + 25) for number in seen[i]]
        assert sorted(eight_epochs) == sorted(list(range(50)) * 8)


@pytest.mark.parametrize("num_workers", [3, 4])
async def test_uneven_parts_of_a_batch_are_weighted_by_their_size(node, spec_of, num_workers):
    """10 samples over 3 or 4 workers: a mean of means would visibly differ after one step."""
    spec = spec_of("Fast", global_batch_size=10, max_iterations=3, hyperparameters={"learning_rate": 1.0})
    alone = await run_to_the_end(node, spec)
    together = await run_to_the_end(node, spec, num_workers=num_workers)
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


async def test_reported_loss_is_the_mean_over_the_global_batch(each_node, spec_of):
    losses = []
    for num_workers in (1, 3):
        spec = spec_of("Points", global_batch_size=10, max_iterations=2)
        workers = await each_node.launch(spec, job_id=each_node.new_job_id(), num_workers=num_workers)
        losses.append((await workers.first(Finished)).metrics["loss"])
        await workers.ended()
    assert losses[0] == losses[1]


async def test_metric_condition_ends_all_workers_at_one_iteration(node, spec_of):
    condition = MetricCondition(metric="remaining", comparison="<=", value=80.0)
    spec = spec_of("CountsDown", max_iterations=90, metric_conditions=(condition,))
    workers = await node.launch(spec, job_id=node.new_job_id(), num_workers=2)
    finished = await workers.first(Finished)
    assert (finished.iteration, finished.condition) == (21, "metric")
    assert finished.metrics["remaining"] == 80.0
    assert {exit_.code for exit_ in (await workers.ended()).values()} == {ExitCode.DONE}


async def test_profile_measures_and_leaves_no_checkpoint(node, spec_of):
    job_id = node.new_job_id()
    spec = spec_of("Points", hyperparameters={"step_s": 0.01})
    workers = await node.launch(spec, job_id=job_id, num_workers=2, purpose="profile", profile_min_s=0.1)
    profiled = await workers.first(Profiled)
    assert profiled.dataset_size == 50
    assert 0 < profiled.iterations_per_s < 100  # a step takes at least 10 ms
    assert {exit_.code for exit_ in (await workers.ended()).values()} == {ExitCode.DONE}
    assert not node.checkpoints_of(job_id).exists()


async def test_sigterm_stops_at_a_boundary(node, spec_of):
    job_id = node.new_job_id()
    spec = spec_of("Points", max_iterations=100_000, hyperparameters={"step_s": 0.005})
    workers = await node.launch(spec, job_id=job_id, num_workers=2)
    await workers.first(Started, rank=1)
    os.kill(workers.workers[1].pid, signal.SIGTERM)  # one worker receives it, all stop
    assert {exit_.code for exit_ in (await workers.ended()).values()} == {ExitCode.DONE}
    assert (await workers.first(CheckpointWritten)).iteration > 0


async def test_worker_in_its_rendezvous_stops_at_once(node, spec_of):
    workers = await node.launch(spec_of("Points"), job_id=node.new_job_id(), num_workers=2, lineup=Lineup(ranks=[1]))
    await workers.first(Alive)
    workers.stop()
    assert (await workers.ended())[1].code == ExitCode.DONE
    assert not workers.all_of(Started)


async def test_finished_job_that_is_started_again_finishes_again(node, spec_of):
    """Its executor may have died after the last checkpoint, before it recorded the end."""
    job_id = node.new_job_id()
    for generation in (1, 2):
        workers = await node.launch(spec_of("Points"), job_id=job_id, generation=generation)
        assert (await workers.first(Finished)).iteration == 10
        await workers.ended()
    assert (await workers.first(Started)).iteration == 10


async def test_a_requested_checkpoint_is_complete_while_the_training_continues(node, spec_of):
    job_id = node.new_job_id()
    spec = spec_of("Points", max_iterations=4000, hyperparameters={"step_s": 0.004})
    workers = await node.launch(spec, job_id=job_id, num_workers=2)
    await workers.first(Progressed)
    workers.workers[0].send(WriteCheckpoint(request=7))
    written = await workers.first(CheckpointWritten, 0)
    assert written.request == 7
    assert written.file.startswith(str(node.checkpoints_of(job_id)))
    state = checkpoint_of(node, job_id)
    assert state is not None
    assert os.stat(written.file).st_size == written.num_bytes
    assert state["iteration"] == written.iteration
    workers.workers[0].send(WriteCheckpoint(request=8))
    workers.stop()
    await workers.ended()
    assert 8 in {checkpoint.request for checkpoint in workers.all_of(CheckpointWritten)}
    assert workers.all_of(CheckpointWritten)[-1].iteration > written.iteration
