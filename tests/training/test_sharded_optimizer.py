"""Jobs whose workers hold parts of the optimizer's state: the bits of jobs whose workers hold all of it."""

import pytest
import pytest_asyncio

from benchmarks.engine.schedules import Conditions, prove
from benchmarks.engine.transports import TransportName
from elasticflow.shared.messages.worker_protocol.from_worker import (
    CheckpointWritten,
    ExitCode,
    Failed,
    Interrupted,
    Progressed,
    Started,
    Switched,
)
from tests.support.rings import few_daily
from tests.support.trained_jobs import UNEVEN, Trained, end_of, switch, train

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAST = 40  # iterations
LONG = 60  # with SLOW_DOWN_S two minutes of two workers, while `slow_down` exists
SLOW_DOWN_S = 0.0005  # times the square of the iterations done
TEN_RESIZES = [  # by new rank: the old one, None for a joining worker
    [0, 1, None],
    [2, 0],
    [None, 1, 0, None],
    [3],
    [0, None],
    [1, 0, None, None],
    [2, None, 0],
    [1],
    [None, 0, None, None],
    [1, 3],
]


def job(spec_of, name: str = "Stateful", *, sharded: bool = True, until: int = LAST, **hyperparameters):
    return spec_of(
        name,
        global_batch_size=UNEVEN,
        max_iterations=until,
        shard_optimizer=sharded,
        hyperparameters=hyperparameters,
    )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def whole(node, spec_of) -> Trained:
    """The result of one worker that holds all of the state."""
    return await train(node, job(spec_of, sharded=False))


@pytest.mark.parametrize("num_workers", [1, 3])
async def test_any_number_of_workers_gives_the_bits_of_the_whole_optimizer(node, spec_of, whole, num_workers):
    job_id = node.new_job_id()
    assert await train(node, job(spec_of), job_id=job_id, num_workers=num_workers) == whole
    parts = [path for path in node.checkpoints_of(job_id).iterdir() if path.suffix == ".part"]
    assert len(parts) == num_workers, "each worker has written its own"


async def test_parts_move_without_a_stop(node, spec_of, whole, slow_down):
    job_id = node.new_job_id()
    workers = await node.launch(job(spec_of, slow_down=str(slow_down)), job_id=job_id, num_workers=2)
    await workers.first(Progressed)
    workers = await switch(node, workers, [0, 1, None], [2, 0], [None, 1, 0, None], [3])
    slow_down.unlink()
    assert await end_of(node, workers) == whole


async def test_ten_resizes_without_a_stop_do_not_change_the_bits(each_node, spec_of, slow_down):
    """Between one worker and four; some leave, some are replaced, and some take others' ranks."""
    node = each_node
    whole = await train(node, job(spec_of, sharded=False, until=LONG))
    spec = job(spec_of, until=LONG, slow_down=str(slow_down), slow_down_s=SLOW_DOWN_S)
    workers = await node.launch(spec, job_id=node.new_job_id(), num_workers=2)
    await workers.first(Progressed)
    for members in TEN_RESIZES:
        workers = await switch(node, workers, members)
    assert len(TEN_RESIZES) == workers.workers[0].assignment.plan.generation - 1 == 10
    slow_down.unlink()
    assert await end_of(node, workers) == whole


async def test_a_checkpoint_continues_at_any_size_and_with_whole_states(node, spec_of, whole):
    job_id, end = node.new_job_id(), None
    for generation, (num_workers, until, sharded) in enumerate(
        [(3, 4, True), (2, 8, True), (2, 12, False), (4, LAST, True)], start=1
    ):
        spec = job(spec_of, until=until, sharded=sharded)
        end = await train(node, spec, job_id=job_id, num_workers=num_workers, generation=generation)
    assert end == whole


@pytest.mark.parametrize("num_survivors", [1, 2])
async def test_after_the_loss_of_a_part_the_job_continues_from_its_checkpoint(
    node, spec_of, whole, tmp_path, num_survivors
):
    job_id = node.new_job_id()
    doomed = job(spec_of, dies_at=9, record=str(tmp_path))
    workers = await node.launch(doomed, job_id=job_id, num_workers=3, checkpoint_every_s=0.01)
    await workers.first(CheckpointWritten)
    while len(interrupted := workers.all_of(Interrupted)) < 2:
        await workers.next_event()
    assert {each.iteration for each in interrupted} == {9}
    survivors = [rank for rank in range(3) if workers.all_of(Interrupted, rank)]
    lost = [rank for rank in range(3) if rank not in survivors]
    if num_survivors == 1:
        lost.append(survivors.pop())
        workers.workers[lost[-1]].kill()
    after = await node.switch_generation(workers, survivors, lost=lost)
    exits = await workers.ended()
    assert {exits[rank].code for rank in survivors} == {ExitCode.PEER_LOST}
    assert not after.all_of(Switched)
    again = await node.launch(job(spec_of), job_id=job_id, num_workers=2, generation=3)
    assert 0 < (await again.first(Started)).iteration <= 9
    assert await end_of(node, again) == whole


async def test_the_fast_mode_shards_too(node, spec_of):
    spec = spec_of("Fast", global_batch_size=16, max_iterations=20, shard_optimizer=True)
    sharded = await train(node, spec, num_workers=3)
    whole = await train(node, spec_of("Fast", max_iterations=20), num_workers=3)
    assert sharded.metrics == whole.metrics


async def test_an_optimizer_that_cannot_be_divided_fails_the_job(node, spec_of):
    workers = await node.launch(job(spec_of, "Factored"), job_id=node.new_job_id())
    assert "shard_optimizer: Adafactor is not known" in (await workers.first(Failed)).error
    await workers.ended()


@pytest.mark.nightly("the ten resizes above and the loss of a part run each day")
@pytest.mark.parametrize("transport", few_daily([TransportName.ASYNCHRONOUS, TransportName.GLOO], 1))
async def test_no_schedule_of_resizes_and_kills_changes_the_bits(transport):
    """Ten events each: workers join, leave and are killed, also during a switch."""
    row = await prove(8, (1, 4), Conditions(at_once=2, transport=transport), is_sharded=True)
    assert row["unfinished"] == []
    assert row["differences"] == []
    assert row["killed"] > 0
    assert row["states_compared"] > row["generations"] > 10
