"""Jobs whose model several workers hold together: the same bits on one gang and on several, also if they change."""

import pytest
import pytest_asyncio
import torch

from benchmarks.engine.schedules import Conditions, prove_gangs
from benchmarks.engine.transports import TransportName
from elasticflow.services.executor.processes.launcher import Exited
from elasticflow.shared.messages.worker_protocol.from_worker import (
    MODEL_FOLDER,
    CheckpointWritten,
    ExitCode,
    Failed,
    Interrupted,
    Profiled,
    Progressed,
    Started,
)
from testbed.user_code.training_functions import Layered
from tests.support.trained_jobs import UNEVEN, Trained, all_switched, end_of, switch, train, weights_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAST = 30  # iterations


def job(spec_of, name: str = "InGangs", *, gang: int = 2, until: int = LAST, batch: int = UNEVEN, **hyperparameters):
    return spec_of(
        name,
        global_batch_size=batch,
        max_iterations=until,
        gpus_per_replica=gang,
        hyperparameters=hyperparameters,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def one_gang(node, spec_of) -> Trained:
    return await train(node, job(spec_of), num_workers=2)


@pytest.mark.parametrize("num_gangs", [2, 3])
async def test_any_number_of_gangs_gives_the_bits_of_one(node, spec_of, one_gang, num_gangs):
    assert await train(node, job(spec_of), num_workers=2 * num_gangs) == one_gang


async def test_gangs_train_what_one_worker_trains(node, spec_of):
    """Up to rounding, since a gang adds the gradients of its parts."""
    weights = []
    for gang in (1, 2, 4):
        job_id = node.new_job_id()
        await train(node, job(spec_of, gang=gang, batch=32, dropout=0.0), job_id=job_id, num_workers=gang)
        weights.append(weights_of(node, job_id))
    for others in weights[1:]:
        assert not torch.equal(weights[0], others)
        torch.testing.assert_close(weights[0], others, rtol=0, atol=1e-5)


async def test_gangs_join_and_leave_without_a_stop(node, spec_of, one_gang, slow_down):
    workers = await node.launch(job(spec_of, slow_down=str(slow_down)), job_id=node.new_job_id(), num_workers=2)
    await workers.first(Progressed)
    workers = await switch(node, workers, [0, 1, None, None], [2, 3], [None, None, 0, 1, None, None])
    slow_down.unlink()
    assert await end_of(node, workers) == one_gang


async def test_a_class_may_divide_its_model_by_itself(node, spec_of, one_gang):
    assert await train(node, job(spec_of, "DividesItself"), num_workers=2) == one_gang
    on_meta = job(spec_of, "DividesItself", meta=True)
    assert await train(node, on_meta, num_workers=2) == await train(node, on_meta, num_workers=4)


async def test_gangs_read_a_stream_without_a_length(node, spec_of, slow_down):
    expected = await train(node, job(spec_of, "StreamInGangs"), num_workers=2)
    slow = job(spec_of, "StreamInGangs", slow_down=str(slow_down))
    workers = await node.launch(slow, job_id=node.new_job_id(), num_workers=2)
    await workers.first(Progressed)
    workers = await switch(node, workers, [0, 1, None, None])
    slow_down.unlink()
    assert await end_of(node, workers) == expected


async def test_the_loss_of_a_worker_ends_its_gang_and_others_go_on(node, spec_of, one_gang, slow_down):
    workers = await node.launch(job(spec_of, slow_down=str(slow_down)), job_id=node.new_job_id(), num_workers=6)
    await workers.first(Progressed)
    workers.workers[3].kill()
    for rank in (0, 1, 4, 5):
        await workers.first(Interrupted, rank)
    assert (await workers.first(Exited, 2)).code == ExitCode.PEER_LOST
    workers = await node.switch_generation(workers, [4, 5, None, None, 0, 1], lost=[2, 3])
    await all_switched(workers, [4, 5, None, None, 0, 1])
    slow_down.unlink()
    assert await end_of(node, workers) == one_gang


async def test_a_single_gang_that_is_lost_continues_from_its_checkpoint(node, spec_of, one_gang, slow_down):
    job_id = node.new_job_id()
    slow = job(spec_of, slow_down=str(slow_down))
    workers = await node.launch(slow, job_id=job_id, num_workers=2, checkpoint_every_s=0.01)
    await workers.first(CheckpointWritten)
    workers.workers[1].kill()
    assert (await workers.first(Exited, 0)).code == ExitCode.PEER_LOST
    slow_down.unlink()
    again = await node.launch(job(spec_of), job_id=job_id, num_workers=4, generation=2)
    assert (await again.first(Started)).iteration > 0
    assert await end_of(node, again) == one_gang


async def test_a_job_that_stops_goes_on_with_any_number_of_gangs(node, spec_of, one_gang, slow_down):
    job_id = node.new_job_id()
    workers = await node.launch(job(spec_of, slow_down=str(slow_down)), job_id=job_id, num_workers=4)
    await workers.first(Progressed)
    workers.stop()
    assert {each.code for each in (await workers.ended()).values()} == {ExitCode.DONE}
    slow_down.unlink()
    assert await train(node, job(spec_of), job_id=job_id, num_workers=2, generation=2) == one_gang


async def test_the_model_is_stored_whole(node, spec_of):
    job_id = node.new_job_id()
    await train(node, job(spec_of), job_id=job_id, num_workers=4)
    (file,) = (node.checkpoints_of(job_id) / MODEL_FOLDER).iterdir()
    model = torch.load(file, weights_only=True)
    assert {name: tuple(each.shape) for name, each in model.items()} == {
        name: tuple(each.shape) for name, each in Layered().state_dict().items()
    }
    stored = torch.cat([each.flatten() for each in model.values()])
    assert torch.equal(stored, weights_of(node, job_id))


async def test_replicas_of_another_size_are_refused(node, spec_of):
    job_id = node.new_job_id()
    await train(node, job(spec_of, until=2), job_id=job_id, num_workers=2)
    for gang, words in ((4, "with 2 GPUs for each replica, and this one has 4"),):
        workers = await node.launch(job(spec_of, gang=gang, batch=32), job_id=job_id, num_workers=gang, generation=2)
        assert words in (await workers.first(Failed)).error
        await workers.ended()


@pytest.mark.nightly("gangs that join, leave and lose a worker run each day, one event after another")
@pytest.mark.parametrize(
    ("gang", "transport"), [(2, TransportName.GLOO), (4, TransportName.GLOO), (2, TransportName.ASYNCHRONOUS)]
)
async def test_no_schedule_of_resizes_and_kills_changes_the_bits(gang, transport):
    """Ten events each: gangs join and leave, and a worker of them is killed or stopped, also during a switch."""
    row = await prove_gangs(gang, (1, 4), Conditions(at_once=2, transport=transport))
    assert row["unfinished"] == []
    assert row["differences"] == []
    assert row["killed"] > 0
    assert row["states_compared"] > row["generations"] > 10


async def test_a_profiling_run_measures_gangs(node, spec_of):
    """Its first step runs twice, and gives the same bits."""
    spec = job(spec_of, until=1000)
    profiling = {"purpose": "profile", "profile_min_s": 0.05, "measures_step_times": True}
    workers = await node.launch(spec, job_id=node.new_job_id(), num_workers=4, **profiling)
    profiled = await workers.first(Profiled, 0)
    assert profiled.iterations_per_s > 0
    assert profiled.one_virtual_node_s is not None
    assert profiled.single_gpu is None
    assert {each.code for each in (await workers.ended()).values()} == {ExitCode.DONE}


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("FactoredInGangs", {}, "gpus_per_replica: Adafactor is not known"),
        (
            "WithStatisticsInGangs",
            {"batch": 32},
            "gpus_per_replica: train() changes the buffer running_mean of BatchNorm1d",
        ),
        ("FastInGangs", {}, "gpus_per_replica: the fast mode does not divide a model"),
        ("OwnProcessGroupInGangs", {}, "Leave out init_process_group()"),
        ("MeanInGangs", {}, "mean() gives no values of the whole batch where several GPUs hold a replica"),
        ("BlocksOfAnotherModel", {}, "sharded_blocks() returned Linear, which is no module of the model"),
        ("HookedInGangs", {}, "the parameter last.bias has a hook (register_hook), which is not called"),
        ("ScaledInGangs", {}, "scaler of stateful() is a GradScaler, which needs the whole gradient"),
        ("ManyVirtualNodesInGangs", {}, "let the class say virtual_nodes = 8"),
    ],
)
async def test_what_a_gang_cannot_do_is_refused_in_the_first_step(node, spec_of, name, fields, words):
    workers = await node.launch(job(spec_of, name, **{"batch": 16, **fields}), job_id=node.new_job_id(), num_workers=2)
    assert words in (await workers.first(Failed)).error
    await workers.ended()
