"""What people use in their training: the same bits while workers join and leave."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from elasticflow.shared.messages.worker_protocol.from_worker import Interrupted, Progressed
from testbed.user_code.features import write_shards
from tests.support.trained_jobs import all_switched, end_of, switch, train
from tests.training import conftest

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAST = 40  # iterations


def job(spec_of, name: str, **settings: str):
    return spec_of(f"features:{name}", global_batch_size=21, max_iterations=LAST, hyperparameters=settings)


async def train_both(node, spec_of, tmp_path, slow_down, name):
    """The end of one worker; and of two workers that become three, then one."""
    write_shards(tmp_path)
    alone = await train(node, job(spec_of, name, folder=str(tmp_path)))
    spec = job(spec_of, name, folder=str(tmp_path), slow_down=str(slow_down))
    workers = await node.launch(spec, job_id=node.new_job_id(), num_workers=2)
    await workers.first(Progressed)
    workers = await switch(node, workers, [0, 1, None], [2])
    slow_down.unlink()
    return alone, await end_of(node, workers)


@pytest.mark.parametrize(
    "name",
    [
        "Autocast",
        "ChannelsLast",
        "Checkpointing",
        "ReentrantCheckpointing",
        "DataWorkers",
        "WebDataset",
        "Streaming",
    ],
)
async def test_resizes_do_not_change_the_bits(node, spec_of, tmp_path, slow_down, name):
    alone, resized = await train_both(node, spec_of, tmp_path, slow_down, name)
    assert resized == alone


@pytest.mark.skipif(conftest.IS_ASYNCHRONOUS, reason="compiled kernels read memory past the simulated stream")
async def test_resizes_do_not_change_the_bits_of_a_compiled_model(node, spec_of, tmp_path, slow_down):
    alone, resized = await train_both(node, spec_of, tmp_path, slow_down, "Compiled")
    assert resized == alone


async def train_with_lost_leaders(node, spec, slow_down, fed_iterations, **launch) -> None:
    """The leader leaves; the next one is killed; then all workers are, and a checkpoint lies behind what was fed.

    fed_iterations: returns the iterations that the sink has.
    """
    job_id = node.new_job_id()
    workers = await node.launch(spec, job_id=job_id, num_workers=2, checkpoint_every_s=0.3, **launch)
    await workers.first(Progressed)
    workers = await switch(node, workers, [1, None])
    await fed_again(workers, fed_iterations)
    workers.workers[0].kill()
    await workers.first(Interrupted, 1)
    workers = await node.switch_generation(workers, [1], lost=[0])
    await all_switched(workers, [1])
    await fed_again(workers, fed_iterations)
    workers.workers[0].kill()
    await workers.ended()
    assert 0 < len(fed_iterations()) < LAST
    workers = await node.launch(spec, job_id=job_id, num_workers=2, generation=4, **launch)
    slow_down.unlink()
    await end_of(node, workers)


async def fed_again(workers, fed_iterations) -> None:
    before = len(fed_iterations())
    while len(fed_iterations()) == before:
        await workers.next_event()


async def test_the_sink_gets_each_iteration_once_whichever_worker_leads(node, spec_of, tmp_path, slow_down):
    def fed() -> list[list[str]]:
        file = tmp_path / "fed"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    spec = job(spec_of, "Fed", folder=str(tmp_path), slow_down=str(slow_down))
    await train_with_lost_leaders(node, spec, slow_down, lambda: [int(iteration) for iteration, _, _ in fed()])
    lines = [(int(iteration), loss, process) for iteration, loss, process in fed()]
    assert (lines[0][0], lines[-1][0]) == (1, LAST)
    for (iteration, _, process), (following, _, other) in itertools.pairwise(lines):
        # a leader that is killed within the call of the sink takes its iteration along
        assert following == iteration + 1 or (following == iteration + 2 and process != other)
    assert len({process for _, _, process in lines}) == 4
    (tmp_path / "fed").unlink()
    await train(node, job(spec_of, "Fed", folder=str(tmp_path)))
    alone = {int(iteration): loss for iteration, loss, _ in fed()}
    assert [loss for _, loss, _ in lines] == [alone[iteration] for iteration, _, _ in lines]


async def test_the_sink_sees_its_job_and_how_many_gpus_it_has(node, spec_of, tmp_path, slow_down):
    spec = job(spec_of, "SeesItsJob", folder=str(tmp_path), slow_down=str(slow_down))
    named = {"job_id": node.new_job_id(), "job_identity": "c" * 16, "deadline_s": 2_000_000_000.0}
    workers = await node.launch(spec, num_workers=2, **named)
    await workers.first(Progressed)
    workers = await switch(node, workers, [1, 0, None])
    slow_down.unlink()
    await end_of(node, workers)
    lines = (tmp_path / "seen").read_text().splitlines()
    about = f"{named['job_id']} {named['job_identity']} {named['deadline_s']}"
    assert list(dict.fromkeys(lines)) == [f"{about} {num_gpus} True False" for num_gpus in (2, 3)]


async def test_one_worker_feeds_the_sink_although_all_write_parts_of_the_checkpoint(node, spec_of, tmp_path):
    spec = replace(job(spec_of, "Fed", folder=str(tmp_path)), shard_optimizer=True)
    await train(node, spec, num_workers=2)
    lines = [line.split() for line in (tmp_path / "fed").read_text().splitlines()]
    assert [int(iteration) for iteration, *_ in lines] == list(range(1, LAST + 1))
    assert len({process for *_, process in lines}) == 1


async def test_tensorboard_shows_each_iteration_once_although_leaders_are_killed(node, spec_of, tmp_path, slow_down):
    """As its own reader finds them, in a file of each leader, without its hiding of repeated steps."""
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    def losses(folder: Path) -> dict[int, float]:
        if not folder.exists():
            return {}
        board = event_accumulator.EventAccumulator(str(folder), purge_orphaned_data=False)
        scalars = board.Reload().Scalars("loss")
        assert len({scalar.step for scalar in scalars}) == len(scalars)
        return {scalar.step: scalar.value for scalar in scalars}

    folder = tmp_path / "board"
    spec = job(spec_of, "InTensorBoard", folder=str(folder), slow_down=str(slow_down))
    await train_with_lost_leaders(node, spec, slow_down, lambda: sorted(losses(folder)))
    assert len(list(folder.iterdir())) == 4
    await train(node, job(spec_of, "InTensorBoard", folder=str(tmp_path / "undisturbed")))
    undisturbed = losses(tmp_path / "undisturbed")
    assert sorted(undisturbed) == list(range(1, LAST + 1))
    assert losses(folder).items() <= undisturbed.items()
    assert len(undisturbed) - len(losses(folder)) <= 2, "a leader may be killed within the call of the sink"
