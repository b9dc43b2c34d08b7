"""Rank 0 is a seat, not an office: wherever it dies, others go on, to the bits of a run that nobody disturbed."""

import signal

import pytest

from services.executor.launcher import Exited
from services.executor.worker.checkpoint import CheckpointStore
from shared.messages.from_worker import ExitCode, Finished, Interrupted, Progressed
from tests.training.test_bitwise import digest_of, run, stateful
from tests.training.test_stop_free import all_there

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAST = 97  # iterations; not one at which all evaluate
ENGINE = "services.executor.worker"
IN_A_CHANGE = {
    "at a meeting": f"{ENGINE}.meeting:compare",
    "once all have agreed to go over": f"{ENGINE}.trainer:hand_over",
    "while it gives the state to a newcomer": f"{ENGINE}.handover:_parcel",
    "before the first step after the switch": f"{ENGINE}.trainer:Trainer.begin",
}
AT_ITS_OWN_WORK = {
    "while it evaluates": f"{ENGINE}.trainer:Trainer.evaluate_here",
    "while it writes a checkpoint": "os:fsync",
}
AFTER_THE_LAST_STEP = f"{ENGINE}.saving:Saving.finish"


async def test_wherever_it_dies_others_go_on_from_the_step_at_which_they_were(node, spec_of, tmp_path):
    """One job, all deaths: three workers train, rank 0 dies, another becomes rank 0, and a newcomer takes its place."""
    quiet = node.new_job_id()
    metrics = await run(node, stateful(spec_of, until=LAST), job_id=quiet)
    job_id, turn, unhurried = node.new_job_id(), tmp_path / "turn", tmp_path / "unhurried"
    unhurried.touch()
    phases = IN_A_CHANGE | AT_ITS_OWN_WORK
    (tmp_path / "points").write_text("\n".join((*phases.values(), AFTER_THE_LAST_STEP)))
    spec = spec_of(
        "dying:DiesAt",
        global_batch_size=21,
        max_iterations=LAST,
        hyperparameters={"deaths": str(tmp_path)},
    )
    workers = await node.launch(spec, job_id=job_id, num_workers=3, checkpoint_every_s=0.05)
    await workers.first(Progressed)
    iteration, generation = 0, 1
    for phase, point in phases.items():
        turn.write_text(f"{workers.workers[0].pid} {point}")
        between = await node.regroup(workers, [0, 1, 2, None]) if phase in IN_A_CHANGE else None
        assert (await workers.first(Exited, 0)).signal == signal.SIGKILL, phase
        interrupted = [await workers.first(Interrupted, rank) for rank in (1, 2)]
        if between is not None:  # as an executor does with whom nobody waits for any more
            between.workers[3].kill()
            await between.first(Exited, 3)
        generation += 2
        workers = await node.regroup(workers, [2, None, 1], lost=[0], generation=generation)
        came = await all_there(workers, [2, None, 1])
        assert iteration < came.iteration == max(each.iteration for each in interrupted) < LAST, phase
        iteration = came.iteration

    turn.write_text(f"{workers.workers[0].pid} {AFTER_THE_LAST_STEP}")
    unhurried.unlink()
    ended = await workers.ended()  # as the job is done, all others leave; its last state dies with rank 0
    assert ended[0].signal == signal.SIGKILL
    assert {ended[rank].code for rank in (1, 2)} == {ExitCode.DONE}
    kept = CheckpointStore(node.checkpoints_of(job_id), generation=generation)
    assert 0 < kept.newest_iteration() < LAST
    again = await node.launch(spec, job_id=job_id, generation=generation + 1, num_workers=2)
    finished = await again.first(Finished)
    await again.ended()
    assert (digest_of(node, job_id), dict(finished.metrics)) == (digest_of(node, quiet), metrics)
