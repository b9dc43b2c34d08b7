"""A batch that exceeds the memory: a profiling run finds the micro-batch size, and later jobs start with it."""

from pathlib import Path

import pytest

from elasticflow.shared.messages.events import MemoryExceeded, WorkerCrashed
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.state.job import Phase
from testbed.fault_evidence import assert_sound
from testbed.real_pool import job, running_pool


def heavy(**hyperparameters: float) -> JobSpec:
    """Its speed is not known."""
    return job(
        JobClass.BEST_EFFORT,
        training_function="testbed.user_code.tiny_jobs:Heavy",
        model_name="",
        max_iterations=40,
        hyperparameters={"step_s": 0.005, **hyperparameters},
    )


@pytest.mark.nightly("training/test_micro_batches.py retries with smaller micro-batches")
async def test_the_largest_that_fits_is_found_by_trying_and_remembered(tmp_path: Path) -> None:
    async with running_pool(tmp_path, num_nodes=1, replicas={}) as pool:
        for job_id in ("first", "second"):
            await pool.acknowledged(heavy(fits=3), job_id)
            state = await pool.ended([job_id])
            assert state.ended_jobs[job_id].phase is Phase.FINISHED
        await pool.acknowledged(heavy(fits=0), "hopeless")
        state = await pool.ended(["hopeless"])
        entries = await pool.ledger()
    hopeless = state.ended_jobs["hopeless"]
    assert hopeless.phase is Phase.FAILED
    assert "a single sample exceeds the memory in iteration 0" in hopeless.explanation
    messages = [entry.message for entry in entries]
    exceeded = [event for event in messages if isinstance(event, MemoryExceeded)]
    sizes = [(event.job_id, event.micro_batch_size) for event in exceeded]
    assert [size for job_id, size in sizes if job_id == "first"] == [8, 4], "it is halved until it fits"
    assert {job_id for job_id, _ in sizes} == {"first", "hopeless"}, "what was found is remembered"
    assert state.ended_jobs["second"].micro_batch_size == 2
    assert not [event for event in messages if isinstance(event, WorkerCrashed)]
    assert_sound(entries, pool.data_dir)
