"""Data sets without a length: real workers join, leave, die and start anew in the middle of a stream."""

import pytest

from elasticflow.shared.messages.worker_protocol.from_worker import Finished, Profiled
from tests.support.trained_jobs import checkpoint_of, end_of, script, train, train_disturbed
from tests.training.test_failures import failure_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

EPOCHS, STEPS = 30, 94  # epochs of 50 samples in batches of 16


async def test_resizes_a_crash_and_a_restart_do_not_change_the_bits(node, spec_of):
    spec = script(spec_of, "streams", str(EPOCHS), until=10 * STEPS)
    job_id = node.new_job_id()
    undisturbed = await train(node, spec, job_id=job_id)
    assert f"trained {STEPS} steps: object of type 'UnsizedStream' has no len()\n" in node.log_of(job_id)
    state = checkpoint_of(node, job_id)
    assert (state["iteration"], state["epoch"], state["samples"]) == (STEPS, EPOCHS, "an unknown number of")

    job_id = node.new_job_id()
    workers = await train_disturbed(node, spec, job_id)
    assert (await workers.first(Finished)).iteration == STEPS
    assert await end_of(node, workers) == undisturbed


async def test_a_stream_that_differs_between_workers_is_refused_in_the_first_step(node, spec_of):
    failed, _ = await failure_of(node, spec_of("FromAnUnseededStream", max_iterations=40), num_workers=2)
    assert "the data set gave other samples when it was opened again" in failed.error


async def test_a_stream_that_differs_between_openings_is_refused_by_the_profiling_run_of_one_worker(node, spec_of):
    failed, _ = await failure_of(node, spec_of("FromAnUnseededStream"), purpose="profile", profile_min_s=0.1)
    assert "the data set gave other samples when it was opened again" in failed.error


async def test_the_profile_of_a_stream_has_no_size(node, spec_of):
    spec = spec_of("FromAnUnsizedStream")
    workers = await node.launch(spec, job_id=node.new_job_id(), purpose="profile", profile_min_s=0.1)
    assert (await workers.first(Profiled)).dataset_size is None
    await workers.ended()
