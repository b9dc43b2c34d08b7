"""An unchanged torchrun script: its workers restart at another size, from its own snapshot."""

import asyncio

import pytest

from elasticflow.shared.messages.worker_protocol.from_worker import (
    CheckpointWritten,
    ExitCode,
    Failed,
    Finished,
    Profiled,
    Started,
)
from tests.support.trained_jobs import files_of, script

pytestmark = pytest.mark.asyncio(loop_scope="session")

EPOCHS = 12
ITERATIONS_AN_EPOCH = 10  # 1500 samples, 150 in an iteration: on one worker three steps
ENDLESS = 10**6


def example(spec_of, *, epochs: int = EPOCHS):
    spec = script(spec_of, "--epochs", str(epochs), name="examples.ddp.snapshots", entry="__torchrun__")
    return spec_of(
        spec.training_function,
        global_batch_size=150,
        max_iterations=ITERATIONS_AN_EPOCH * epochs,
        hyperparameters={**spec.hyperparameters, "batch_per_worker": 50},
    )


async def test_a_script_grows_by_a_restart_and_ends_by_itself(node, spec_of):
    job_id = node.new_job_id()
    workers = await node.launch(example(spec_of, epochs=ENDLESS), job_id=job_id)
    assert (await workers.first(Started)).iteration == 0
    kept = await workers.first(CheckpointWritten)
    assert kept.iteration % ITERATIONS_AN_EPOCH == 0, "after an epoch"
    workers.stop()
    await workers.ended()
    kept = workers.all_of(CheckpointWritten)[-1]

    epochs = kept.iteration // ITERATIONS_AN_EPOCH + EPOCHS
    workers = await node.launch(
        example(spec_of, epochs=epochs),
        job_id=job_id,
        num_workers=2,
        generation=2,
        checkpoint_iteration=kept.iteration,
    )
    (begins_at,) = {(await workers.first(Started, rank)).iteration for rank in (0, 1)}
    assert begins_at >= kept.iteration, "it may have ended before it could tell of the last one"
    finished = await workers.first(Finished)
    assert {exit_.code for exit_ in (await workers.ended()).values()} == {ExitCode.DONE}
    log = node.log_of(job_id, generation=2)
    epochs_saved = int(log.partition("continues after ")[2].split()[0])
    unnoted = ITERATIONS_AN_EPOCH * epochs_saved - begins_at
    assert unnoted in (0, ITERATIONS_AN_EPOCH), "it may have ended between a snapshot and the step after it"
    assert finished.iteration == ITERATIONS_AN_EPOCH * epochs - unnoted
    assert (finished.condition == "max_iterations") == (unnoted == 0)
    assert float(log.partition("accuracy ")[2].split()[0]) > 0.9


async def test_a_profiling_run_measures_global_batches_and_leaves_nothing_behind(node, spec_of):
    job_id = node.new_job_id()
    workers = await node.launch(example(spec_of), job_id=job_id, num_workers=2, purpose="profile", profile_min_s=0.05)
    profiled = await workers.first(Profiled)
    assert {exit_.code for exit_ in (await workers.ended()).values()} == {ExitCode.DONE}
    assert profiled.dataset_size is None
    assert profiled.iterations_per_s > 0
    assert not node.checkpoints_of(job_id).exists()


async def test_peers_of_a_killed_worker_end_and_the_snapshot_remains(node, spec_of):
    job_id = node.new_job_id()
    workers = await node.launch(example(spec_of, epochs=ENDLESS), job_id=job_id, num_workers=2)
    await workers.first(CheckpointWritten)
    workers.workers[1].kill()
    assert (await workers.ended())[0].code == ExitCode.PEER_LOST
    assert (files_of(node, job_id) / "snapshot.pt").is_file()


async def test_workers_of_a_script_that_names_a_port_meet_all_the_same(node, spec_of):
    spec = script(spec_of, "names_a_port", entry="__torchrun__")
    workers = await node.launch(spec, job_id=node.new_job_id(), num_workers=2)
    assert (await workers.first(Finished)).iteration == 5
    assert {exit_.code for exit_ in (await workers.ended()).values()} == {ExitCode.DONE}


WRONG_ARGUMENT = "train: error: unrecognized arguments: --widht 8"  # from argparse


@pytest.mark.parametrize(
    ("word", "purpose", "error"),
    [
        ("raises_at_once", "train", "ValueError: nothing to train"),
        ("exits", "train", "sys.exit(3) at scripts.py:"),
        ("takes_arguments", "train", "sys.exit(2) at scripts.py:"),
        ("spawns", "profile", "the script starts its own processes with torch.multiprocessing.spawn"),
        ("never_trains", "profile", "the script ended after 0 optimizer steps, by sys.exit(0) at scripts.py:"),
    ],
)
async def test_errors_of_a_script_are_reported(node, spec_of, word, purpose, error):
    spec = script(spec_of, word, entry="__torchrun__")
    workers = await node.launch(spec, job_id=node.new_job_id(), purpose=purpose)
    failed = await workers.first(Failed)
    await workers.ended()
    assert failed.error.startswith(error)
    assert word != "takes_arguments" or f" ({WRONG_ARGUMENT}) ends the process in the script" in failed.error
    assert error.startswith("the script") or word in failed.traceback


async def test_a_script_that_ends_without_a_step_has_ended(node, spec_of):
    workers = await node.launch(script(spec_of, "never_trains", entry="__torchrun__"), job_id=node.new_job_id())
    finished = await workers.first(Finished)
    assert (finished.iteration, finished.condition) == (0, "metric")
    assert workers.all_of(Started)
    await workers.ended()


NOTES = ["exit handler", "finally"]


@pytest.mark.parametrize("keeps_state", [True, False])
async def test_a_stop_runs_the_finally_blocks_and_exit_handlers_of_all_workers(node, spec_of, keeps_state):
    """Also of the one that waits for another: that one ends first. A job that has ended writes no checkpoint.

    Without a state to keep, rank 0 may end before rank 1 reads its own stop: rank 1 then reports a lost peer, which
    its executor does not count as a crash.
    """
    job_id = node.new_job_id()
    spec = script(spec_of, "leaves_notes", "torchrun", entry="__torchrun__", until=ENDLESS)
    workers = await node.launch(spec, job_id=job_id, num_workers=2)
    await asyncio.gather(workers.first(Started, 0), workers.first(Started, 1))
    workers.stop(keeps_state=keeps_state)
    codes = [exit_.code for _, exit_ in sorted((await workers.ended()).items())]
    assert codes in ([ExitCode.DONE, ExitCode.DONE], *([] if keeps_state else [[ExitCode.DONE, ExitCode.PEER_LOST]]))
    assert names_of_files(node, job_id) == [f"{note} {rank}" for note in NOTES for rank in (0, 1)]
    assert not workers.all_of(Failed)


async def test_a_stop_before_the_first_step_runs_them_too(node, spec_of):
    job_id = node.new_job_id()
    workers = await node.launch(script(spec_of, "leaves_notes", "prepares", entry="__torchrun__"), job_id=job_id)
    while not (files_of(node, job_id) / "prepares").exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)
    workers.stop()
    assert (await workers.ended())[0].code == ExitCode.DONE
    assert names_of_files(node, job_id) == [*(f"{note} 0" for note in NOTES), "prepares"]


async def test_an_elastic_script_of_a_job_that_has_ended_ends_without_a_checkpoint(node, spec_of):
    job_id = node.new_job_id()
    workers = await node.launch(script(spec_of, "leaves_notes", "elastic", until=ENDLESS), job_id=job_id)
    await workers.first(Started)
    workers.stop(keeps_state=False)
    assert (await workers.ended())[0].code == ExitCode.DONE
    assert names_of_files(node, job_id) == [f"{note} 0" for note in NOTES]
    assert not workers.all_of(CheckpointWritten)


def names_of_files(node, job_id: str) -> list[str]:
    return sorted(file.name for file in files_of(node, job_id).iterdir())


async def test_a_sharded_model_goes_on_at_another_number_of_gpus_from_its_distributed_checkpoint(node, spec_of):
    def sharded(steps: int):
        arguments = ("--steps", str(steps), "--width", "32", "--save-every", "10")
        spec = script(spec_of, *arguments, name="examples.gpt.sharded", entry="__torchrun__")
        return spec_of(
            spec.training_function, global_batch_size=32, max_iterations=steps, hyperparameters=spec.hyperparameters
        )

    job_id = node.new_job_id()
    workers = await node.launch(sharded(ENDLESS), job_id=job_id, num_workers=2)
    await workers.first(CheckpointWritten)
    workers.stop()
    await workers.ended()
    kept = workers.all_of(CheckpointWritten)[-1].iteration
    assert kept % 10 == 0, "what the snapshot has, and not the steps that a save in the background outlasts"

    workers = await node.launch(
        sharded(kept + 20), job_id=job_id, num_workers=3, generation=2, checkpoint_iteration=kept
    )
    assert (await workers.first(Started)).iteration >= kept
    await workers.first(Finished)
    await workers.ended()
    continued = int(node.log_of(job_id, generation=2).partition("begins at step ")[2].split()[0])
    assert continued >= kept
