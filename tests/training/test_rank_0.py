"""Rank 0 is a seat, not an office: wherever it dies, others go on, to the bits of a run that nobody disturbed."""

import signal

import pytest
import pytest_asyncio

from services.executor.launcher import Exited
from services.executor.worker.checkpoint import CheckpointStore
from shared.messages.worker_channel import ExitCode, Finished, Interrupted, Progressed
from tests.training.test_bitwise import digest_of, run, stateful

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAST = 97  # iterations; not one at which all evaluate
ENGINE = "services.executor.worker"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def quiet(node, spec_of):
    """What one worker comes to."""
    job_id = node.new_job_id()
    metrics = await run(node, stateful(spec_of, until=LAST), job_id=job_id)
    return digest_of(node, job_id), metrics


async def dying(node, spec_of, tmp_path, at: str, *, job_id: str):
    """Three workers that train; rank 0 dies at the next call of a function. With what they were told to do."""
    turn = tmp_path / "turn"
    turn.touch()  # nobody's yet
    spec = spec_of(
        "dying:DiesAt",
        global_batch_size=21,
        max_iterations=LAST,
        hyperparameters={"at": at, "turn": str(turn)},
    )
    workers = await node.launch(spec, job_id=job_id, num_workers=3, checkpoint_every_s=0.05)
    await workers.first(Progressed)
    turn.write_text(str(workers.workers[0].pid))
    return spec, workers


@pytest.mark.parametrize(
    ("at", "changes"),
    [
        pytest.param(f"{ENGINE}.meeting:compare", True, id="at a meeting"),
        pytest.param(f"{ENGINE}.trainer:hand_over", True, id="once all have agreed to go over"),
        pytest.param(f"{ENGINE}.handover:_parcel", True, id="while it gives the state to a newcomer"),
        pytest.param(f"{ENGINE}.trainer:Trainer.begin", True, id="before the first step after the switch"),
        pytest.param(f"{ENGINE}.trainer:Trainer.evaluate_here", False, id="while it evaluates"),
        pytest.param("os:fsync", False, id="while it writes a checkpoint"),
    ],
)
async def test_others_go_on_from_the_step_at_which_they_were(node, spec_of, quiet, tmp_path, at, changes):
    job_id = node.new_job_id()
    _, before = await dying(node, spec_of, tmp_path, at, job_id=job_id)
    between = await node.regroup(before, [0, 1, 2, None]) if changes else None
    assert (await before.first(Exited, 0)).signal == signal.SIGKILL
    interrupted = [await before.first(Interrupted, rank) for rank in (1, 2)]
    if between is not None:  # as an executor does with whom nobody waits for any more
        between.workers[3].kill()
        await between.first(Exited, 3)
    after = await node.regroup(before, [2, None, 1], lost=[0], generation=3)
    finished = await after.first(Finished)
    assert {exit_.code for exit_ in (await after.ended()).values()} == {ExitCode.DONE}
    assert 0 < max(each.iteration for each in interrupted) < LAST
    assert (digest_of(node, job_id), dict(finished.metrics)) == quiet


async def test_after_the_last_step_the_newest_checkpoint_counts(node, spec_of, quiet, tmp_path):
    """All others have left, as the job is done; its last state died with rank 0."""
    job_id = node.new_job_id()
    spec, workers = await dying(node, spec_of, tmp_path, f"{ENGINE}.saving:Saving.finish", job_id=job_id)
    assert [exit_.signal or exit_.code for exit_ in (await workers.ended()).values()].count(
        ExitCode.DONE
    ) == 2
    kept = CheckpointStore(node.checkpoints_of(job_id), generation=1).newest_iteration()
    assert 0 < kept < LAST
    again = await node.launch(spec, job_id=job_id, generation=2, num_workers=2)
    finished = await again.first(Finished)
    await again.ended()
    assert (digest_of(node, job_id), dict(finished.metrics)) == quiet
