"""A real pool measures the number of virtual nodes of a job, and the job trains with it."""

import pytest

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.state.job import Phase
from testbed.real_pool import RunningPool, job

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_job_whose_time_is_that_of_its_calls_has_one_virtual_node(session_pool: RunningPool) -> None:
    """Two jobs of one profile, which no other test has."""
    spec = job(
        JobClass.BEST_EFFORT,
        training_function="testbed.user_code.training_functions:Points",
        model_name="measured-virtual-nodes",
        max_iterations=20,
    )
    for job_id in ("measured-first", "measured-second"):
        await session_pool.acknowledged(spec, job_id)
        state = await session_pool.ended([job_id])
        ended = state.ended_jobs[job_id]
        assert (ended.phase, ended.num_virtual_nodes) == (Phase.FINISHED, 1), ended.explanation
    (curve,) = (curve for key, curve in state.curves.items() if "measured-virtual-nodes/" in key)
    assert curve.virtual_nodes is not None
    assert (curve.virtual_nodes.count, curve.virtual_nodes.source) == (1, "measured")
    assert list(curve.iterations_per_s) == [1], "a second GPU would compute nothing"
