"""A job that begins from the checkpoint of an ended one trains as if that had gone on (docs/adr/0114)."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from elasticflow.services.executor.processes.prepared_folders import bring_checkpoints
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.shared.messages.job_spec import ContinuedJob
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode, Failed, Finished, Started
from tests.support.trained_jobs import script

pytestmark = pytest.mark.asyncio(loop_scope="session")

FIRST, SECOND = "1" * 16, "2" * 16
FUNCTION = "WithAdditionalState"


async def finished(node, spec, job_id: str, **launch) -> dict[str, Any]:
    """The last state of the job."""
    workers = await node.launch(spec, job_id=job_id, **launch)
    await workers.first(Finished)
    await workers.ended()
    state = CheckpointStore(node.checkpoints_of(job_id), generation=1000).newest()
    assert state is not None
    return state


def continued(job_id: str, iteration: int = 10) -> ContinuedJob:
    return ContinuedJob(job_id=job_id, identity=FIRST, iteration=iteration)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("sharded", [False, True])
async def test_the_bits_are_those_of_a_longer_run_that_was_not_disturbed(node, spec_of, sharded):
    longer = spec_of(FUNCTION if not sharded else "Points", max_iterations=20, shard_optimizer=sharded)
    undisturbed = await finished(node, longer, node.new_job_id(), job_identity=FIRST, num_workers=2)
    first, second = node.new_job_id(), node.new_job_id()
    shorter = spec_of(FUNCTION if not sharded else "Points", max_iterations=10, shard_optimizer=sharded)
    await finished(node, shorter, first, job_identity=FIRST, num_workers=2, generation=3)
    bring_checkpoints(node.folder, second, continued(first))
    goes_on = spec_of(
        FUNCTION if not sharded else "Points",
        max_iterations=20,
        shard_optimizer=sharded,
        continues=continued(first),
    )
    launch = {"job_identity": SECOND, "generation": 4, "checkpoint_iteration": 10, "num_workers": 1}
    workers = await node.launch(goes_on, job_id=second, **launch)
    assert (await workers.first(Started)).iteration == 10
    await workers.first(Finished)
    await workers.ended()
    state = CheckpointStore(node.checkpoints_of(second), generation=1000, owner=SECOND).newest()
    assert state is not None
    assert state["iteration"] == undisturbed["iteration"] == 20
    for name in ("model", "optimizer", "buffers", "gradients", "attributes", "metrics"):
        assert same(state[name], undisturbed[name]), name


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("WithAdditionalState", "the model has no 0.weight, which the checkpoint has"),
        ("WithAdditionalState", "stateful() returns average, schedule, steps_begun, which had no state"),
        ("Factored", "the optimizer is Adafactor, and was SGD"),
    ],
)
async def test_a_checkpoint_that_does_not_fit_is_refused_by_name(node, spec_of, function, said):
    first, second = node.new_job_id(), node.new_job_id()
    await finished(node, spec_of("Points", max_iterations=3), first, job_identity=FIRST)
    bring_checkpoints(node.folder, second, continued(first, 3))
    spec = spec_of(function, max_iterations=6, continues=continued(first, 3))
    launch = {"job_identity": SECOND, "generation": 2, "checkpoint_iteration": 3}
    workers = await node.launch(spec, job_id=second, **launch)
    failed = await workers.first(Failed)
    assert {end.code for end in (await workers.ended()).values()} == {ExitCode.FAILED}
    assert f"the checkpoint of iteration 3 of {first} does not fit this job: " in failed.error
    assert said in failed.error
    assert "or submit the job without --from" in failed.error


async def test_a_checkpoint_of_another_job_is_none(node, spec_of):
    """The files of a job that it does not continue lie in its folder."""
    first, second = node.new_job_id(), node.new_job_id()
    await finished(node, spec_of("Points", max_iterations=3), first, job_identity=FIRST)
    bring_checkpoints(node.folder, second, continued(first, 3))
    other = ContinuedJob(job_id=first, identity="3" * 16, iteration=3)
    spec = spec_of("Points", max_iterations=6, continues=other)
    launch = {"job_identity": SECOND, "generation": 2, "checkpoint_iteration": 3}
    workers = await node.launch(spec, job_id=second, **launch)
    failed = await workers.first(Failed)
    await workers.ended()
    assert f"job {FIRST} wrote it" in failed.error


async def test_a_job_that_wrote_none_passes_on_the_checkpoint_that_it_had_continued(node, spec_of):
    first, second, third = (node.new_job_id() for _ in range(3))
    await finished(node, spec_of("Points", max_iterations=3), first, job_identity=FIRST)
    bring_checkpoints(node.folder, second, continued(first, 3))
    chain = ContinuedJob(job_id=second, identity=SECOND, iteration=3, earlier=(FIRST,))
    bring_checkpoints(node.folder, third, chain)
    spec = spec_of("Points", max_iterations=6, continues=chain)
    launch = {"job_identity": "3" * 16, "generation": 2, "checkpoint_iteration": 3}
    workers = await node.launch(spec, job_id=third, **launch)
    assert (await workers.first(Started)).iteration == 3
    await workers.first(Finished)
    await workers.ended()


async def test_a_profiling_run_of_mended_code_needs_no_checkpoint(node, spec_of):
    """It begins with fresh objects, among them those of stateful()."""
    first, second = node.new_job_id(), node.new_job_id()
    await finished(node, spec_of(FUNCTION, max_iterations=3), first, job_identity=FIRST)
    spec = spec_of(FUNCTION, max_iterations=6, continues=continued(first, 3))
    workers = await node.launch(spec, job_id=second, job_identity=SECOND, generation=2, purpose="profile")
    assert (await workers.first(Started)).iteration == 0
    workers.stop()
    await workers.ended()


async def test_a_script_goes_on_with_what_it_keeps_in_plain_variables(node, spec_of):
    """Its last checkpoint is written when the code behind its loop has run."""
    longer, first, second = (node.new_job_id() for _ in range(3))
    whole = script(spec_of, "loop", name="projects", global_batch_size=20, until=20)
    await finished(node, whole, longer, job_identity=FIRST)
    part = script(spec_of, "loop", name="projects", global_batch_size=20, until=10)
    ended = await finished(node, part, first, job_identity=FIRST)
    assert ended["attributes"]
    bring_checkpoints(node.folder, second, continued(first))
    goes_on = replace(whole, continues=continued(first))
    launch = {"job_identity": SECOND, "generation": 4, "checkpoint_iteration": 10}
    state = await finished(node, goes_on, second, **launch)
    undisturbed = CheckpointStore(node.checkpoints_of(longer), generation=1000).newest()
    assert undisturbed is not None
    assert state["iteration"] == undisturbed["iteration"] == 20
    assert same(state["model"], undisturbed["model"])


@pytest.mark.parametrize(("gang", "sharded"), [(2, False), (1, False), (1, True)])
async def test_the_checkpoint_of_gangs_continues_in_gangs_and_on_one_gpu(node, spec_of, gang, sharded):
    """In gangs of the same size with the same bits."""

    def spec(gang: int, until: int, **more: Any) -> Any:
        return spec_of("InGangs", max_iterations=until, gpus_per_replica=gang, **more)

    undisturbed = await finished(node, spec(2, 20), node.new_job_id(), job_identity=FIRST, num_workers=2)
    first, second = node.new_job_id(), node.new_job_id()
    await finished(node, spec(2, 10), first, job_identity=FIRST, num_workers=2, generation=3)
    bring_checkpoints(node.folder, second, continued(first))
    goes_on = spec(gang, 20, continues=continued(first), shard_optimizer=sharded)
    launch = {"job_identity": SECOND, "generation": 4, "checkpoint_iteration": 10, "num_workers": 2 * gang}
    workers = await node.launch(goes_on, job_id=second, **launch)
    assert (await workers.first(Started)).iteration == 10
    await workers.first(Finished)
    await workers.ended()
    state = CheckpointStore(node.checkpoints_of(second), generation=1000, owner=SECOND).newest()
    assert state is not None
    assert state["iteration"] == 20
    has_same_bits = all(same(state[name], undisturbed[name]) for name in ("model", "optimizer", "metrics"))
    assert has_same_bits == (gang == 2), "one GPU rounds otherwise, and has other random numbers"
