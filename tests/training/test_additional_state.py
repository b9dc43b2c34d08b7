"""All state of a job beside the usual: changed once a step, handed to joining workers, in checkpoints, compared."""

import signal

import pytest
import pytest_asyncio

from elasticflow.services.executor.processes.launcher import Exited
from elasticflow.shared.messages.worker_protocol.from_worker import (
    Failed,
    Interrupted,
    Progressed,
    Started,
)
from tests.support.trained_jobs import UNEVEN, all_switched, checkpoint_of, end_of, script, switch, train

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAST = 36  # iterations; the mean of this count over all parts is exact


def job(spec_of, *, until: int = LAST, **hyperparameters):
    return spec_of(
        "WithAdditionalState", global_batch_size=UNEVEN, max_iterations=until, hyperparameters=hyperparameters
    )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def alone(node, spec_of):
    """The result of one worker."""
    return await train(node, job(spec_of))


async def test_each_object_changes_once_a_step_although_train_is_called_for_each_virtual_node(node, spec_of, alone):
    job_id = node.new_job_id()
    end = await train(node, job(spec_of), job_id=job_id, num_workers=3)
    state = checkpoint_of(node, job_id)
    assert state["schedule"]["last_epoch"] == state["steps_begun"]["count"] == LAST
    assert end.metrics["begun"] == end.metrics["averaged"] == LAST
    assert state["optimizer"]["param_groups"][0]["lr"] == pytest.approx(0.05 * 0.97**LAST)
    assert state["attributes"] == {"warmth": pytest.approx(0.99**LAST)}
    assert state["buffers"]["passes"] == pytest.approx(LAST)
    assert state["gradients"]["tensors"], "of the layer without an optimizer"
    assert end == alone


async def test_switches_and_a_restart_hand_it_over(each_node, spec_of, alone, slow_down):
    job_id = each_node.new_job_id()
    spec = job(spec_of, slow_down=str(slow_down))
    workers = await each_node.launch(spec, job_id=job_id, num_workers=2)
    await workers.first(Progressed)
    workers = await switch(each_node, workers, [0, 1, None], [None, 0], [1])
    workers.stop()
    await workers.ended()
    slow_down.unlink()
    workers = await each_node.launch(spec, job_id=job_id, num_workers=2, generation=10)
    assert await end_of(each_node, workers) == alone


async def test_a_rolled_back_step_leaves_no_change(each_node, spec_of, alone, tmp_path):
    """The killed worker's peers have begun the step: they have counted it."""
    job_id = each_node.new_job_id()
    workers = await each_node.launch(job(spec_of, dies_at=9, record=str(tmp_path)), job_id=job_id, num_workers=3)
    await workers.first(Interrupted)
    workers.stop()
    assert signal.SIGKILL in {exit_.signal for exit_ in (await workers.ended()).values()}
    assert checkpoint_of(each_node, job_id)["steps_begun"]["count"] == 9
    workers = await each_node.launch(job(spec_of), job_id=job_id, num_workers=2, generation=2)
    assert (await workers.first(Started)).iteration == 9
    assert await end_of(each_node, workers) == alone


async def test_an_evaluation_is_not_repeated_by_survivors_nor_from_a_checkpoint(node, spec_of, tmp_path, slow_down):
    """It keeps a history, steps a schedule, restores the best weights: twice would be another result."""

    def remembers(**hyperparameters):
        return spec_of(
            "RemembersEvaluations", global_batch_size=UNEVEN, max_iterations=LAST, hyperparameters=hyperparameters
        )

    spec = remembers(dies_at=9, record=str(tmp_path), slow_down=str(slow_down))
    job_id = node.new_job_id()
    workers = await node.launch(spec, job_id=job_id, num_workers=3, checkpoint_every_s=0.01)
    await workers.first(Exited)
    (dead,) = (rank for rank, event in workers.events if isinstance(event, Exited))
    survivors = [rank for rank in range(3) if rank != dead]
    for rank in survivors:
        await workers.first(Interrupted, rank)
    workers = await node.switch_generation(workers, survivors, lost=[dead])
    await all_switched(workers, survivors)
    await workers.first(Progressed)
    for worker in workers.workers.values():
        worker.kill()
    await workers.ended()
    slow_down.unlink()
    workers = await node.launch(remembers(), job_id=job_id, num_workers=2, generation=10)
    assert (await workers.first(Started)).iteration > 0
    ended = await end_of(node, workers)
    assert ended.metrics["number"] == ended.metrics["at"] == LAST
    assert ended == await train(node, remembers())


async def test_objects_that_each_part_of_a_batch_changes_otherwise_are_named(node, spec_of):
    """What train() counts by itself differs between the two virtual nodes of one worker."""
    spec = job(spec_of, grows=True)
    workers = await node.launch(spec, job_id=node.new_job_id(), num_workers=3)
    failed = await workers.first(Failed)
    await workers.ended()
    assert "train() changed steps_begun in another way for one part of the global batch" in failed.error


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("StatefulWithoutLoading", 'stateful() returned "average", of type Unloadable, without load_state_dict()'),
        ("StatefulNamedAsTheModel", 'stateful() returned an object named "model"'),
    ],
)
async def test_objects_that_cannot_be_handed_over_are_refused_at_the_start(node, spec_of, function, error):
    workers = await node.launch(spec_of(function), job_id=node.new_job_id())
    assert error in (await workers.first(Failed)).error
    await workers.ended()
    assert not workers.all_of(Started)


async def test_a_script_changes_its_objects_once_a_step(node, spec_of):
    digests = set()
    for num_workers in (1, 3):
        job_id = node.new_job_id()
        spec = script(spec_of, "additional_state", global_batch_size=UNEVEN, until=LAST)
        end = await train(node, spec, job_id=job_id, num_workers=num_workers)
        state = checkpoint_of(node, job_id)
        assert state["ExponentialLR-0"]["last_epoch"] == state["Counter-2"]["count"] == LAST
        assert state["AveragedModel-1"]["n_averaged"] == LAST
        digests.add(end.bits)
    assert len(digests) == 1


async def test_a_script_learns_at_once_that_an_object_cannot_be_loaded(node, spec_of):
    workers = await node.launch(script(spec_of, "cannot_load"), job_id=node.new_job_id())
    failed = await workers.first(Failed)
    assert "TypeError: elastic(): object needs state_dict() and load_state_dict()" in failed.error
    await workers.ended()


async def test_what_an_evaluation_changes_is_changed_on_all_workers(node, spec_of):
    """Rank 0 alone evaluates: it steps a schedule, changes weights, and ends the job."""
    alone = await train(node, spec_of("DecidesInEvaluation", max_iterations=80))
    assert 0 < alone.metrics["rate"] < 0.05
    among_three = await train(node, spec_of("DecidesInEvaluation", max_iterations=80), num_workers=3)
    assert among_three == alone
