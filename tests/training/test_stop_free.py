"""Workers come and go while the others train: nobody stops, nothing is lost, and the bits are those of one worker."""

import asyncio
import os
import signal

import pytest
import pytest_asyncio
import torch

from services.executor.launcher import Exited
from services.executor.worker.checkpoint import CheckpointStore
from shared.messages.from_worker import (
    Alive,
    Checkpointed,
    ExitCode,
    Failed,
    Finished,
    Interrupted,
    Progressed,
    Started,
    Switched,
)
from shared.messages.to_worker import PeersLost
from tests.training.test_bitwise import digest_of, run, stateful
from tests.training.test_resize import assert_each_sample_once_an_epoch, run_to_the_end, trained_weights

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAST = 40  # iterations


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def unmoved(node, spec_of):
    """What one worker comes to that nobody disturbs."""
    job_id = node.new_job_id()
    metrics = await run(node, stateful(spec_of, until=LAST), job_id=job_id)
    return digest_of(node, job_id), metrics


@pytest.fixture
def unhurried(tmp_path):
    """Until it is removed the last iteration does not come: see `Stateful`."""
    file = tmp_path / "unhurried"
    file.touch()
    return file


async def all_there(workers, members):
    """What one of them said when all had gone over."""
    said = [
        await workers.first(Started if known is None else Switched, rank)
        for rank, known in enumerate(members)
    ]
    assert len({came.iteration for came in said}) == 1
    return said[0]


@pytest.mark.parametrize(
    "changes",
    [
        [[0, None]],  # from one to two
        [[0, 1, None, None], [0, 1], [0, None]],  # grow, shrink, one for another
        [[1]],  # rank 0 leaves
        [[None]],  # all leave, another takes over
        [[1, None, 0, None], [3, 0], [None, 1, 0]],  # ranks change, too
    ],
    ids=str,
)
async def test_changes_leave_no_trace(node, spec_of, unmoved, unhurried, changes):
    job_id = node.new_job_id()
    num_workers = 1 if changes[0] == [0, None] else 2
    spec = stateful(spec_of, until=LAST, unhurried=str(unhurried))
    workers = await node.launch(spec, job_id=job_id, num_workers=num_workers)
    await workers.first(Progressed)
    iteration = 0
    for members in changes:
        workers = await node.regroup(workers, members)
        came = await all_there(workers, members)
        assert iteration < came.iteration < LAST
        assert (came.resize.bytes_moved > 0) == (None in members)
        iteration = came.iteration
    unhurried.unlink()
    finished = await workers.first(Finished)
    assert {exit_.code for exit_ in (await workers.ended()).values()} == {ExitCode.DONE}
    assert (digest_of(node, job_id), dict(finished.metrics)) == unmoved


@pytest.mark.parametrize("pause_s", [0.0, 0.029])
@pytest.mark.parametrize("changes", [[[0, 2], [0, None, 1]], [[2, 0]], [[None, 0]]], ids=str)
async def test_who_survives_goes_on_from_the_step_that_was_interrupted(
    node, spec_of, unmoved, unhurried, changes, pause_s
):
    """One of three is killed anywhere in a step; another comes later, at once, or does not; one more may leave."""
    job_id = node.new_job_id()
    spec = stateful(spec_of, until=LAST, unhurried=str(unhurried))
    before = await node.launch(spec, job_id=job_id, num_workers=3)
    progressed = await before.first(Progressed)
    await asyncio.sleep(pause_s)
    before.workers[1].kill()
    interrupted = [await before.first(Interrupted, rank) for rank in (0, 2)]
    assert min(each.iteration for each in interrupted) >= progressed.iteration
    after = await node.regroup(before, changes[0], lost=[1])
    came = await all_there(after, changes[0])
    assert came.iteration == max(each.iteration for each in interrupted)
    for members in changes[1:]:
        after = await node.regroup(after, members)
        assert (await all_there(after, members)).iteration > came.iteration, "the others trained meanwhile"
    unhurried.unlink()
    finished = await after.first(Finished)
    assert {exit_.code for exit_ in (await after.ended()).values()} == {ExitCode.DONE}
    assert not before.all_of(Checkpointed), "nobody had to read what was on the disk"
    assert (digest_of(node, job_id), dict(finished.metrics)) == unmoved


async def test_of_changes_that_come_during_a_change_the_last_one_is_made(node, spec_of, unmoved, unhurried):
    job_id = node.new_job_id()
    spec = stateful(spec_of, until=LAST, unhurried=str(unhurried))
    before = await node.launch(spec, job_id=job_id, num_workers=2)
    await before.first(Progressed)
    outgrown = await node.regroup(before, [0, 1, None])
    given_up = await node.regroup(before, [1], generation=3)
    after = await node.regroup(before, [1, None, 0], generation=4)
    outgrown.workers[2].kill()
    await all_there(after, [1, None, 0])
    assert not outgrown.all_of(Started)
    assert not [*outgrown.all_of(Switched), *given_up.all_of(Switched)]
    unhurried.unlink()
    finished = await after.first(Finished)
    await after.ended()
    assert (digest_of(node, job_id), dict(finished.metrics)) == unmoved


async def test_one_more_is_lost_while_they_regroup_and_the_last_one_goes_on_alone(
    node, spec_of, unmoved, unhurried
):
    job_id = node.new_job_id()
    spec = stateful(spec_of, until=LAST, unhurried=str(unhurried))
    before = await node.launch(spec, job_id=job_id, num_workers=3)
    await before.first(Progressed)
    before.workers[0].kill()
    interrupted = await before.first(Interrupted, 2)
    await node.regroup(before, [1, 2], lost=[0])
    before.workers[1].kill()
    before.workers[2].send(PeersLost(generation=2))
    after = await node.regroup(before, [2], lost=[0, 1], generation=3)
    assert (await all_there(after, [2])).iteration >= interrupted.iteration
    unhurried.unlink()
    finished = await after.first(Finished)
    assert (await after.ended())[0].code == ExitCode.DONE
    assert (digest_of(node, job_id), dict(finished.metrics)) == unmoved


async def test_a_worker_that_is_stopped_is_ended_and_the_others_go_on(node, spec_of, unmoved, unhurried):
    job_id = node.new_job_id()
    spec = stateful(spec_of, until=LAST, unhurried=str(unhurried))
    before = await node.launch(spec, job_id=job_id, num_workers=2)
    await before.first(Progressed)
    os.kill(before.workers[0].pid, signal.SIGSTOP)
    await before.first(Interrupted, 1)
    after = await node.regroup(before, [1, None], lost=[0])
    await all_there(after, [1, None])
    unhurried.unlink()
    finished = await after.first(Finished)
    await after.ended()
    assert (digest_of(node, job_id), dict(finished.metrics)) == unmoved


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("name", ["Wide", "WideAndFast"])
async def test_who_waits_for_one_that_says_nothing_goes_on_when_it_is_told(node, spec_of, name, lost):
    """As where a machine vanishes from the network: no connection breaks. A transfer of which a part has come waits
    for the rest, so the thread is left behind in it."""
    spec = spec_of(name, max_iterations=30, hyperparameters={"learning_rate": 1e-7}, global_batch_size=15)
    alone = node.new_job_id()
    metrics = await run(node, spec, job_id=alone)
    job_id = node.new_job_id()
    before = await node.launch(spec, job_id=job_id, num_workers=3)
    await before.first(Progressed)
    silent = before.workers[lost]
    os.kill(silent.pid, signal.SIGSTOP)
    survivors = [rank for rank in range(3) if rank != lost]
    for rank in survivors:
        before.workers[rank].send(PeersLost(generation=1))
    interrupted = [await before.first(Interrupted, rank) for rank in survivors]
    assert not before.all_of(Exited), "nothing told them but the message"
    after = await node.regroup(before, [survivors[1], None, survivors[0]], lost=[lost])
    came = await all_there(after, [survivors[1], None, survivors[0]])
    assert came.iteration == max(each.iteration for each in interrupted) > 0
    finished = await after.first(Finished)
    assert {exit_.code for exit_ in (await after.ended()).values()} == {ExitCode.DONE}
    silent.kill()
    if name == "Wide":
        assert (digest_of(node, job_id), dict(finished.metrics)) == (digest_of(node, alone), metrics)
    assert dict(finished.metrics) == pytest.approx(metrics, rel=1e-3)


async def test_who_survives_and_is_stopped_keeps_what_was_done(node, spec_of):
    job_id = node.new_job_id()
    spec = spec_of("Points", max_iterations=10**9, hyperparameters={"step_s": 0.002})
    workers = await node.launch(spec, job_id=job_id, num_workers=3)
    await workers.first(Progressed)
    workers.workers[0].kill()
    done = max([(await workers.first(Interrupted, rank)).iteration for rank in (1, 2)])
    workers.stop()
    assert {exit_.code for exit_ in (await workers.ended()).values()} == {None, ExitCode.DONE}
    # who is a step behind the other may be the first to write
    assert max(written.iteration for written in workers.all_of(Checkpointed)) == done
    state = CheckpointStore(node.checkpoints_of(job_id), generation=1000).newest()
    assert state["iteration"] == done


async def test_the_fast_mode_goes_over_too_and_sees_each_sample_once_an_epoch(node, spec_of, tmp_path):
    job_id = node.new_job_id()
    settings = {"step_s": 0.02, "record": str(tmp_path)}
    spec = spec_of("Fast", max_iterations=200, hyperparameters=settings)
    workers = await node.launch(spec, job_id=job_id, num_workers=2)
    await workers.first(Progressed)
    for members in ([0, 1, None], [2, 0]):
        workers = await node.regroup(workers, members)
        await all_there(workers, members)
    await workers.first(Finished)
    await workers.ended()
    unmoved = await run_to_the_end(node, spec_of("Points", max_iterations=200))
    # some hundred steps let a difference of rounding grow to as much as 3e-4, by when the workers changed
    torch.testing.assert_close(trained_weights(node.checkpoints_of(job_id)), unmoved, rtol=5e-3, atol=1e-3)
    assert_each_sample_once_an_epoch(tmp_path, num_iterations=200)


async def test_a_schedule_that_a_newcomer_does_not_know_is_named(node, spec_of):
    spec = spec_of("Scheduled", max_iterations=10**9, hyperparameters={"step_s": 0.002}, global_batch_size=8)
    job_id = node.new_job_id()
    before = await node.launch(spec, job_id=job_id)
    await before.first(Progressed)
    after = await node.regroup(before, [0, None])
    while not (failed := [*before.all_of(Failed), *after.all_of(Failed)]):
        await asyncio.wait(
            {asyncio.create_task(g.next_event()) for g in (before, after)}, return_when="FIRST_COMPLETED"
        )
    assert "the workers do not hold the same after iteration" in failed[0].error
    assert "such as a learning rate, from self.iteration" in failed[0].error


async def test_a_newcomer_that_dies_changes_nothing(node, spec_of):
    """Before all are ready: the others train on, and can be told something else."""
    job_id = node.new_job_id()
    spec = spec_of("Points", max_iterations=10**9, hyperparameters={"step_s": 0.002})
    before = await node.launch(spec, job_id=job_id, num_workers=2)
    await before.first(Progressed)
    stillborn = await node.regroup(before, [0, 1, None, None])
    stillborn.workers[2].kill()
    stillborn.workers[3].kill()
    num_reports = len(before.all_of(Progressed))
    while len(before.all_of(Progressed)) < num_reports + 4:
        await before.next_event()
    assert not stillborn.all_of(Switched)
    after = await node.regroup(before, [1, None], generation=9)
    await all_there(after, [1, None])
    after.stop()
    assert {exit_.code for exit_ in (await after.ended()).values()} == {ExitCode.DONE}
    assert (await after.first(Checkpointed)).iteration > 0


async def test_a_stop_comes_before_a_change_that_nobody_is_ready_for(node, spec_of):
    """The newcomer never comes: those who train write their checkpoint as ever."""
    job_id = node.new_job_id()
    spec = spec_of("Points", max_iterations=10**9, hyperparameters={"step_s": 0.002})
    before = await node.launch(spec, job_id=job_id, num_workers=2)
    await before.first(Progressed)
    after = await node.regroup(before, [0, 1, None])
    after.workers.pop(2).kill()
    await asyncio.sleep(0)
    before.stop()
    assert {exit_.code for exit_ in (await before.ended()).values()} == {ExitCode.DONE}
    assert (await before.first(Checkpointed)).iteration > 0
    assert not before.all_of(Alive) or not after.all_of(Switched)
