"""Each pattern of the reference page gives the same bits on any number of workers, or is refused at once."""

import asyncio

import pytest

from elasticflow.shared.messages.worker_protocol.from_worker import Failed, Profiled, Progressed, Warned
from tests.support.trained_jobs import end_of, switch, train
from tests.support.training_patterns import PATTERNS, Pattern

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAST = 16  # iterations
TRAINED = [each for each in PATTERNS if not each.refusal and each.job != "Compiled"]  # test_features.py: it takes long
REFUSED = [each for each in PATTERNS if each.refusal]


def job(spec_of, pattern: Pattern, **settings: str):
    return spec_of(f"patterns:{pattern.job}", global_batch_size=21, max_iterations=LAST, hyperparameters=settings)


async def resized(node, spec_of, pattern: Pattern, hold):
    """The end of two workers, then three, then one, which stops; and of four that start from its checkpoint."""
    job_id = node.new_job_id()
    spec = job(spec_of, pattern, hold=str(hold))
    workers = await node.launch(spec, job_id=job_id, num_workers=2)
    await workers.first(Progressed)
    workers = await switch(node, workers, [0, 1, None], [2])
    workers.stop()
    await workers.ended()
    hold.unlink()
    return await end_of(node, await node.launch(spec, job_id=job_id, num_workers=4, generation=4))


@pytest.mark.parametrize("pattern", TRAINED, ids=lambda each: each.job)
async def test_the_same_bits_on_any_number_of_workers(node, spec_of, slow_down, pattern):
    alone, changed = await asyncio.gather(
        train(node, job(spec_of, pattern)), resized(node, spec_of, pattern, slow_down)
    )
    assert changed == alone
    profiled = await node.launch(job(spec_of, pattern), job_id=node.new_job_id(), purpose="profile")
    await profiled.first(Profiled)
    warnings = [warned.warning for warned in profiled.all_of(Warned)]
    assert len(warnings) == bool(pattern.warning)
    assert all(pattern.warning in warning for warning in warnings)
    await profiled.ended()


@pytest.mark.parametrize("pattern", REFUSED, ids=lambda each: each.job)
async def test_what_cannot_be_right_is_refused_in_the_profiling_run(node, spec_of, pattern):
    async def error_of(num_workers: int) -> str:
        spec = job(spec_of, pattern)
        workers = await node.launch(spec, job_id=node.new_job_id(), num_workers=num_workers, purpose="profile")
        failed = await workers.first(Failed)
        await workers.ended()
        return failed.error

    for error in await asyncio.gather(error_of(1), error_of(3)):
        assert pattern.refusal in error
