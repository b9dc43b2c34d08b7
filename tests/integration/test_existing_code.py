"""Scripts over the whole pipeline: an unchanged one, resized by restarts, and an elastic one."""

import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from testbed.real_pool import RunningPool

EPOCHS = 100
JOBS = ("as-it-is", "elastic")
AS_IT_IS = JobSpec(
    training_function="examples.ddp.snapshots:__torchrun__",
    model_name="snapshots",
    global_batch_size=100,
    hyperparameters={"1": "--epochs", "2": str(EPOCHS), "batch_per_worker": 50},
    max_iterations=EPOCHS * 15,
    job_class=JobClass.BEST_EFFORT,
)
ELASTIC = JobSpec(
    training_function="examples.ddp.elastic:__main__",
    model_name="digits",
    global_batch_size=150,
    max_iterations=200,
    hyperparameters={"1": "--epochs", "2": "20"},
    deadline_in_s=3600.0,
)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_script_shrinks_for_a_promise_and_finishes(session_pool: RunningPool) -> None:
    pool = session_pool
    await pool.acknowledged(AS_IT_IS, "as-it-is")
    await pool.when(
        lambda state: (
            (job := state.live_jobs.get("as-it-is")) is not None
            and job.training
            and len(job.gpus) == 2
            and job.checkpoint_iteration > 0
        ),
        "it trains on two GPUs, and has saved a snapshot",
    )
    workers = pool.workers()
    for worker in workers:
        worker.suspend()  # a fast machine trains it to its end before the other one is admitted
    await pool.acknowledged(ELASTIC, "elastic")
    await pool.when(lambda state: len(state.live_jobs["as-it-is"].gpus) == 1, "it is to shrink")
    for worker in workers:
        worker.resume()
    await pool.ended(JOBS)
    messages = [entry.message for entry in await pool.ledger() if getattr(entry.message, "job_id", "") in JOBS]
    finished = {event.job_id: event for event in messages if isinstance(event, events.JobFinished)}
    assert set(finished) == {*JOBS}, [f for f in messages if isinstance(f, events.JobFailed)]
    assert finished["elastic"].metrics["accuracy"] > 0.9
    starts = [event for event in messages if isinstance(event, events.GenerationStarted) and event.job_id == "as-it-is"]
    assert len(starts) > 1, "it shrank for the promise"
    unnoted = AS_IT_IS.max_iterations - finished["as-it-is"].iteration
    assert unnoted in range(0, 15 * len(starts), 15), "of an epoch that was saved just before a stop"
    assert all(start.resize is None for start in starts), "no worker joins it while it trains"
    iterations = [start.iteration for start in starts]
    assert iterations == sorted(iterations)
    assert iterations[-1] > 0, "it resumed from its snapshot"
