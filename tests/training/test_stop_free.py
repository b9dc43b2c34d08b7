"""Workers join and leave while the others train: none stops, no step is lost, and the bits are those of one worker."""

import asyncio
import os
import signal
from itertools import product

import pytest
import pytest_asyncio
import torch

from benchmarks.engine.transports import TransportName
from elasticflow.services.executor.processes.launcher import Exited
from elasticflow.shared.messages.worker_protocol.from_worker import (
    Alive,
    CheckpointWritten,
    ExitCode,
    Failed,
    Finished,
    Interrupted,
    Progressed,
    Started,
    Switched,
)
from elasticflow.shared.messages.worker_protocol.to_worker import PeersLost
from tests.support.rings import few_daily
from tests.support.trained_jobs import all_switched, checkpoint_of, end_of, stateful, switch, train, weights_of
from tests.training.test_resize import assert_each_sample_once_an_epoch, run_to_the_end

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAST = 40  # iterations


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def undisturbed(node, spec_of):
    """The result of one undisturbed worker."""
    return await train(node, stateful(spec_of, until=LAST))


@pytest.mark.parametrize(
    "changes",
    [
        [[0, None]],  # from one to two
        [[0, 1, None, None], [0, 1], [0, None]],  # grow, shrink, replace one
        [[1]],  # rank 0 leaves
        [[None]],  # all leave, a new worker continues
        [[1, None, 0, None], [3, 0], [None, 1, 0]],  # ranks change, too
    ],
    ids=str,
)
async def test_switches_do_not_change_the_bits(node, spec_of, undisturbed, slow_down, changes):
    job_id = node.new_job_id()
    num_workers = 1 if changes[0] == [0, None] else 2
    spec = stateful(spec_of, until=LAST, slow_down=str(slow_down))
    workers = await node.launch(spec, job_id=job_id, num_workers=num_workers)
    await workers.first(Progressed)
    iteration = 0
    for members in changes:
        workers = await node.switch_generation(workers, members)
        switched = await all_switched(workers, members)
        assert iteration < switched.iteration < LAST
        assert (switched.resize.bytes_moved > 0) == (None in members)
        iteration = switched.iteration
    slow_down.unlink()
    assert await end_of(node, workers) == undisturbed


@pytest.mark.parametrize(
    ("changes", "pause_s", "each_node"),
    few_daily(
        [
            ([[0, 2], [0, None, 1]], 0.029, TransportName.ASYNCHRONOUS),
            ([[2, 0]], 0.0, TransportName.GLOO),
            ([[None, 0]], 0.029, TransportName.GLOO),
            *product([[[0, 2], [0, None, 1]]], [0.0, 0.029], [TransportName.GLOO]),
            ([[2, 0]], 0.029, TransportName.GLOO),
            ([[None, 0]], 0.0, TransportName.GLOO),
        ],
        3,
    ),
    indirect=["each_node"],
    ids=str,
)
async def test_survivors_continue_from_the_interrupted_step(
    each_node, spec_of, undisturbed, slow_down, changes, pause_s
):
    """One of three workers is killed anywhere in a step. A new one joins later, at once, or not; one more may leave."""
    job_id = each_node.new_job_id()
    spec = stateful(spec_of, until=LAST, slow_down=str(slow_down))
    before = await each_node.launch(spec, job_id=job_id, num_workers=3)
    progressed = await before.first(Progressed)
    await asyncio.sleep(pause_s)
    before.workers[1].kill()
    interrupted = [await before.first(Interrupted, rank) for rank in (0, 2)]
    assert min(each.iteration for each in interrupted) >= progressed.iteration
    after = await each_node.switch_generation(before, changes[0], lost=[1])
    switched = await all_switched(after, changes[0])
    assert switched.iteration == max(each.iteration for each in interrupted)
    for members in changes[1:]:
        after = await each_node.switch_generation(after, members)
        assert (await all_switched(after, members)).iteration > switched.iteration, "the others trained meanwhile"
    slow_down.unlink()
    assert await end_of(each_node, after) == undisturbed
    assert not before.all_of(CheckpointWritten), "no worker needed a checkpoint"


async def test_of_overlapping_switches_the_last_one_happens(each_node, spec_of, undisturbed, slow_down):
    job_id = each_node.new_job_id()
    spec = stateful(spec_of, until=LAST, slow_down=str(slow_down))
    before = await each_node.launch(spec, job_id=job_id, num_workers=2)
    await before.first(Progressed)
    superseded = await each_node.switch_generation(before, [0, 1, None])
    aborted = await each_node.switch_generation(before, [1], generation=3)
    after = await each_node.switch_generation(before, [1, None, 0], generation=4)
    superseded.workers[2].kill()
    await all_switched(after, [1, None, 0])
    assert not superseded.all_of(Started)
    assert not [*superseded.all_of(Switched), *aborted.all_of(Switched)]
    slow_down.unlink()
    assert await end_of(each_node, after) == undisturbed


async def test_a_second_loss_during_a_switch_leaves_one_worker_that_continues_alone(
    each_node, spec_of, undisturbed, slow_down
):
    job_id = each_node.new_job_id()
    spec = stateful(spec_of, until=LAST, slow_down=str(slow_down))
    before = await each_node.launch(spec, job_id=job_id, num_workers=3)
    await before.first(Progressed)
    before.workers[0].kill()
    interrupted = await before.first(Interrupted, 2)
    await each_node.switch_generation(before, [1, 2], lost=[0])
    before.workers[1].kill()
    before.workers[2].send(PeersLost(generation=2))
    after = await each_node.switch_generation(before, [2], lost=[0, 1], generation=3)
    assert (await all_switched(after, [2])).iteration >= interrupted.iteration
    slow_down.unlink()
    assert await end_of(each_node, after) == undisturbed


async def test_peers_continue_without_a_stopped_process(node, spec_of, undisturbed, slow_down):
    job_id = node.new_job_id()
    spec = stateful(spec_of, until=LAST, slow_down=str(slow_down))
    before = await node.launch(spec, job_id=job_id, num_workers=2)
    await before.first(Progressed)
    os.kill(before.workers[0].pid, signal.SIGSTOP)
    await before.first(Interrupted, 1)
    after = await node.switch_generation(before, [1, None], lost=[0])
    await all_switched(after, [1, None])
    slow_down.unlink()
    assert await end_of(node, after) == undisturbed


@pytest.mark.parametrize(
    ("name", "lost"), few_daily([("Wide", 0), ("WideAndFast", 1), ("Wide", 1), ("WideAndFast", 0)], 2)
)
async def test_a_wait_for_a_silent_peer_ends_when_its_loss_is_reported(node, spec_of, slow_down, name, lost):
    """As when a machine vanishes from the network: no connection breaks. A transfer that has partly arrived waits for
    the rest, so its thread is abandoned."""

    def job(**settings):
        hyperparameters = {"learning_rate": 1e-7, **settings}
        return spec_of(name, max_iterations=15, hyperparameters=hyperparameters, global_batch_size=15)

    alone = await train(node, job())
    spec = job(slow_down=str(slow_down), slow_down_s=0.02)
    before = await node.launch(spec, job_id=node.new_job_id(), num_workers=3)
    await before.first(Progressed)
    silent = before.workers[lost]
    os.kill(silent.pid, signal.SIGSTOP)
    survivors = [rank for rank in range(3) if rank != lost]
    for rank in survivors:
        before.workers[rank].send(PeersLost(generation=1))
    interrupted = [await before.first(Interrupted, rank) for rank in survivors]
    assert not before.all_of(Exited), "only the message reported the loss"
    after = await node.switch_generation(before, [survivors[1], None, survivors[0]], lost=[lost])
    switched = await all_switched(after, [survivors[1], None, survivors[0]])
    assert switched.iteration == max(each.iteration for each in interrupted) > 0
    slow_down.unlink()
    end = await end_of(node, after)
    silent.kill()
    if name == "Wide":
        assert end == alone
    assert end.metrics == pytest.approx(alone.metrics, rel=1e-3)


async def test_stopped_survivors_save_their_progress(node, spec_of):
    job_id = node.new_job_id()
    spec = spec_of("Points", max_iterations=10**9, hyperparameters={"step_s": 0.002})
    workers = await node.launch(spec, job_id=job_id, num_workers=3)
    await workers.first(Progressed)
    workers.workers[0].kill()
    done = max([(await workers.first(Interrupted, rank)).iteration for rank in (1, 2)])
    workers.stop()
    assert {exit_.code for exit_ in (await workers.ended()).values()} == {None, ExitCode.DONE}
    # a worker that is one step behind may write first
    assert max(written.iteration for written in workers.all_of(CheckpointWritten)) == done
    state = checkpoint_of(node, job_id)
    assert state["iteration"] == done


async def test_the_fast_mode_switches_too_and_sees_each_sample_once_an_epoch(each_node, spec_of, tmp_path, slow_down):
    job_id = each_node.new_job_id()
    (record := tmp_path / "record").mkdir()
    settings = {"slow_down": str(slow_down), "record": str(record)}
    spec = spec_of("Fast", max_iterations=100, hyperparameters=settings)
    workers = await each_node.launch(spec, job_id=job_id, num_workers=2)
    await workers.first(Progressed)
    workers = await switch(each_node, workers, [0, 1, None], [2, 0])
    slow_down.unlink()
    await workers.first(Finished)
    await workers.ended()
    undisturbed = await run_to_the_end(each_node, spec_of("Points", max_iterations=100))
    # over some hundred steps, rounding differences grow to up to 3e-4, depending on the time of the switch
    torch.testing.assert_close(weights_of(each_node, job_id), undisturbed, rtol=5e-3, atol=1e-3)
    assert_each_sample_once_an_epoch(record, num_iterations=100)


async def test_a_schedule_that_a_joining_worker_does_not_have_is_named(node, spec_of):
    spec = spec_of("Scheduled", max_iterations=10**9, hyperparameters={"step_s": 0.002}, global_batch_size=8)
    job_id = node.new_job_id()
    before = await node.launch(spec, job_id=job_id)
    await before.first(Progressed)
    after = await node.switch_generation(before, [0, None])
    while not (failed := [*before.all_of(Failed), *after.all_of(Failed)]):
        await asyncio.wait(
            {asyncio.create_task(g.next_event()) for g in (before, after)}, return_when="FIRST_COMPLETED"
        )
    assert "the workers' states differ after iteration" in failed[0].error
    assert "such as a learning rate, from self.iteration" in failed[0].error


async def test_the_death_of_a_joining_worker_changes_nothing(node, spec_of):
    """It dies before all are ready: the others train on, and accept another switch."""
    job_id = node.new_job_id()
    spec = spec_of("Points", max_iterations=10**9, hyperparameters={"step_s": 0.002})
    before = await node.launch(spec, job_id=job_id, num_workers=2)
    await before.first(Progressed)
    failed = await node.switch_generation(before, [0, 1, None, None])
    failed.workers[2].kill()
    failed.workers[3].kill()
    num_reports = len(before.all_of(Progressed))
    while len(before.all_of(Progressed)) < num_reports + 4:
        await before.next_event()
    assert not failed.all_of(Switched)
    after = await node.switch_generation(before, [1, None], generation=9)
    await all_switched(after, [1, None])
    after.stop()
    assert {exit_.code for exit_ in (await after.ended()).values()} == {ExitCode.DONE}
    assert (await after.first(CheckpointWritten)).iteration > 0


async def test_a_stop_precedes_a_switch_that_is_not_ready(node, spec_of):
    """The joining worker never arrives: the training workers write their checkpoint."""
    job_id = node.new_job_id()
    spec = spec_of("Points", max_iterations=10**9, hyperparameters={"step_s": 0.002})
    before = await node.launch(spec, job_id=job_id, num_workers=2)
    await before.first(Progressed)
    after = await node.switch_generation(before, [0, 1, None])
    after.workers.pop(2).kill()
    await asyncio.sleep(0)
    before.stop()
    assert {exit_.code for exit_ in (await before.ended()).values()} == {ExitCode.DONE}
    assert (await before.first(CheckpointWritten)).iteration > 0
    assert not before.all_of(Alive) or not after.all_of(Switched)
