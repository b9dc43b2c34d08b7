"""Training as tasks of a padding load: the same bits as an ordinary run of the same job."""

from pathlib import Path

import pytest

from benchmarks.engine.sensitive import digest
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.shared.messages.worker_protocol.from_worker import Finished
from tests.support.task_runners import Runners
from tests.support.training_in_tasks import result_of, training

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def ordinary_run(node, spec, num_workers: int = 1) -> tuple[str, dict[str, float]]:
    """Digest of the final state, and metrics."""
    job_id = node.new_job_id()
    workers = await node.launch(spec, job_id=job_id, num_workers=num_workers)
    finished = await workers.first(Finished)
    await workers.ended()
    return digest_in(node.checkpoints_of(job_id)), dict(finished.metrics)


def digest_in(checkpoint_dir: Path) -> str:
    state = CheckpointStore(checkpoint_dir, generation=1000).newest()
    assert state is not None
    return digest(state)


@pytest.fixture(params=["Stateful", "Points"])
def spec(request, spec_of):
    """Stateful has dropout, batch norm and noise after the backward pass."""
    return spec_of(request.param, global_batch_size=21, max_iterations=20)


@pytest.mark.parametrize("num_runners", [1, 3])
async def test_any_number_of_runners_gives_the_bits_of_an_ordinary_run(
    node, runners: Runners, spec, tmp_path, num_runners
):
    expected = await ordinary_run(node, spec, num_workers=2)
    async with training(spec, tmp_path / "checkpoints") as made:
        finished = await result_of(made, runners, num_runners)
    assert isinstance(finished, Finished), finished
    assert (digest_in(tmp_path / "checkpoints"), dict(finished.metrics)) == expected
