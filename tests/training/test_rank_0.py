"""At whatever point rank 0 dies, the survivors continue, with the bits of an undisturbed run."""

import signal

import pytest

from elasticflow.services.executor.processes.launcher import Exited
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.shared.messages.worker_protocol.from_worker import (
    ExitCode,
    Interrupted,
    Progressed,
)
from tests.support.trained_jobs import all_switched, end_of, stateful, train

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAST = 97  # iterations; not one with an evaluation
WORKER = "elasticflow.services.executor.worker"
IN_A_SWITCH = {
    "in a rendezvous": f"{WORKER}.group.rendezvous:require_compatible",
    "after all have agreed to switch": f"{WORKER}.engine.trainer:transfer_state",
    "while it sends the state to a joining worker": f"{WORKER}.group.state_transfer:_exchange",
    "before the first step after the switch": f"{WORKER}.engine.trainer:Trainer.begin_generation",
}
ALONE = {
    "while it evaluates": f"{WORKER}.engine.trainer:Evaluation.here",
    "while it writes a checkpoint": "os:fsync",
}
AFTER_THE_LAST_STEP = f"{WORKER}.checkpoint.writer:CheckpointWriter.write_now"


async def test_survivors_of_rank_0_continue_from_their_step(node, spec_of, tmp_path, slow_down):
    """One job, all points: three workers train, rank 0 dies, another becomes rank 0, and a new worker joins."""
    undisturbed = await train(node, stateful(spec_of, until=LAST))
    job_id, victim = node.new_job_id(), tmp_path / "victim"
    phases = IN_A_SWITCH | ALONE
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
        victim.write_text(f"{workers.workers[0].pid} {point}")
        between = await node.switch_generation(workers, [0, 1, 2, None]) if phase in IN_A_SWITCH else None
        assert (await workers.first(Exited, 0)).signal == signal.SIGKILL, phase
        interrupted = [await workers.first(Interrupted, rank) for rank in (1, 2)]
        if between is not None:  # as an executor does when no worker waits for it any more
            between.workers[3].kill()
            await between.first(Exited, 3)
        generation += 2
        workers = await node.switch_generation(workers, [2, None, 1], lost=[0], generation=generation)
        switched = await all_switched(workers, [2, None, 1])
        assert iteration < switched.iteration == max(each.iteration for each in interrupted) < LAST, phase
        iteration = switched.iteration

    victim.write_text(f"{workers.workers[0].pid} {AFTER_THE_LAST_STEP}")
    slow_down.unlink()
    ended = await workers.ended()  # the job is done, so its other workers end; its last state is lost with rank 0
    assert ended[0].signal == signal.SIGKILL
    assert {ended[rank].code for rank in (1, 2)} == {ExitCode.DONE}
    kept = CheckpointStore(node.checkpoints_of(job_id), generation=generation)
    assert 0 < (kept.newest() or {"iteration": 0})["iteration"] < LAST
    again = await node.launch(spec, job_id=job_id, generation=generation + 1, num_workers=2)
    assert await end_of(node, again) == undisturbed
