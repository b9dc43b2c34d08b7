"""A script of one's own, elastic by one call: the same bits as the class, whoever comes, goes and dies."""

from pathlib import Path

import pytest
import pytest_asyncio

from benchmarks.engine.sensitive import digest
from services.executor.worker.checkpoint import CheckpointStore
from shared.messages.from_worker import ExitCode, Failed, Finished, Interrupted, Profiled, Progressed, Started
from tests.training.test_bitwise import digest_of, run, stateful
from tests.training.test_stop_free import all_there

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAST = 40  # iterations


def script(spec_of, *words: str, name: str = "scripts", entry: str = "__main__", until: int = LAST, **fields):
    settings = {str(number): word for number, word in enumerate(words, start=1)}
    return spec_of(f"{name}:{entry}", max_iterations=until, hyperparameters=settings, **fields)


def example(spec_of, *, epochs: int = 4):
    return script(spec_of, "--epochs", str(epochs), name="examples.ddp.elastic", global_batch_size=150)


def files_of(node, job_id: str) -> Path:
    return node.checkpoints_of(job_id) / "files"


def digest_of_what_was_trained(node, job_id: str) -> str:
    state = CheckpointStore(node.checkpoints_of(job_id), generation=1000).newest()
    return digest([state["model"], state["optimizer"], state["iteration"], state["metrics"]["loss"]])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def alone(node, spec_of):
    """What one worker makes of the example."""
    job_id = node.new_job_id()
    metrics = await run(node, example(spec_of), job_id=job_id)
    return digest_of(node, job_id), metrics


async def test_the_example_learns_the_same_on_three_workers_and_saves_it(node, spec_of, alone):
    job_id = node.new_job_id()
    metrics = await run(node, example(spec_of), job_id=job_id, num_workers=3)
    assert (digest_of(node, job_id), metrics) == alone
    assert metrics["accuracy"] > 0.9
    assert (files_of(node, job_id) / "digits.pt").is_file()


async def test_as_a_script_or_as_a_class_through_changes_and_a_crash(node, spec_of):
    job_id = node.new_job_id()
    await run(node, stateful(spec_of, until=60), job_id=job_id)
    expected = digest_of_what_was_trained(node, job_id)

    job_id = node.new_job_id()
    spec = script(spec_of, "stateful", global_batch_size=21, until=60)
    unhurried = files_of(node, job_id) / "unhurried"
    unhurried.parent.mkdir(parents=True)
    unhurried.touch()
    workers = await node.launch(spec, job_id=job_id, num_workers=2)
    for members in ([0, 1, None], [2, 0]):
        await workers.first(Progressed)
        workers = await node.regroup(workers, members)
        await all_there(workers, members)
    (files_of(node, job_id) / "die").touch()
    await workers.first(Interrupted)
    (survivor,) = (rank for rank, event in workers.events if isinstance(event, Interrupted))
    workers = await node.regroup(workers, [survivor, None], lost=[1 - survivor])
    await all_there(workers, [survivor, None])
    unhurried.unlink()
    await workers.first(Finished)
    assert {exit_.code for exit_ in (await workers.ended()).values()} == {ExitCode.DONE}
    assert digest_of_what_was_trained(node, job_id) == expected


async def test_a_schedule_goes_with_the_steps_and_outlives_a_restart(node, spec_of):
    job_id = node.new_job_id()
    for generation, until in enumerate((10, 30), start=1):
        spec = script(spec_of, "schedule_by_steps", until=until)
        await run(node, spec, job_id=job_id, num_workers=generation, generation=generation)
        assert f"last epoch of the schedule: {until}" in node.log_of(job_id, generation=generation)


async def test_a_script_that_ends_early_ends_the_job_and_ends_it_again(node, spec_of):
    """The second time as if its executor had died before it told of the end."""
    job_id = node.new_job_id()
    for generation in (1, 2):
        workers = await node.launch(
            example(spec_of, epochs=2), job_id=job_id, num_workers=2, generation=generation
        )
        finished = await workers.first(Finished)
        assert (finished.iteration, finished.condition) == (20, "metric")
        assert {exit_.code for exit_ in (await workers.ended()).values()} == {ExitCode.DONE}


async def test_a_script_that_runs_out_of_memory_ends_and_goes_on_with_less_at_a_time(node, spec_of):
    """An error in its loop is its end: what it has done is kept, and its worker is missed as any other."""
    job_id = node.new_job_id()
    workers = await node.launch(script(spec_of, "too_big", until=10), job_id=job_id)
    interrupted = await workers.first(Interrupted)
    assert (interrupted.iteration, interrupted.micro_batch_size) == (5, 2)
    assert (await workers.ended())[0].code == ExitCode.OUT_OF_MEMORY
    again = await node.launch(
        script(spec_of, "too_big", until=10), job_id=job_id, generation=2, micro_batch_size=1
    )
    assert (await again.first(Started)).iteration == 5
    assert (await again.first(Finished)).iteration == 10
    await again.ended()


async def test_a_script_that_counts_by_itself_is_ended_with_the_job(node, spec_of):
    assert "loss" in await run(node, script(spec_of, "counts_by_itself"), job_id=node.new_job_id())


async def test_a_pre_run_leaves_nothing_behind(node, spec_of):
    job_id = node.new_job_id()
    workers = await node.launch(
        example(spec_of), job_id=job_id, num_workers=2, purpose="profile", profile_min_s=0.1
    )
    assert (await workers.first(Profiled)).dataset_size == 1500
    await workers.ended()
    assert not node.checkpoints_of(job_id).exists()


@pytest.mark.parametrize(
    ("word", "error", "traceback"),
    [
        ("raises", "RuntimeError: no more of this", 'raise RuntimeError("no more of this")'),
        ("takes_arguments", "SystemExit: 2 (train: error: unrecognized arguments: --widht 8)", "parse_args"),
        ("never_trains", "scripts ended without training: it must call elasticflow.elastic", ""),
        ("accumulates", "it came to backward(). It needs no accumulation of gradients", ""),
        ("breaks", "scripts left its loop within a global batch", ""),
    ],
)
async def test_what_goes_wrong_in_a_script_is_told(node, spec_of, word, error, traceback):
    workers = await node.launch(script(spec_of, word), job_id=node.new_job_id())
    failed = await workers.first(Failed)
    await workers.ended()
    assert error in failed.error
    assert traceback in failed.traceback
