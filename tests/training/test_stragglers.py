"""A worker that is slower than its peers delays all of them; its compute time identifies it."""

import pytest

from elasticflow.shared.messages.worker_protocol.from_worker import Lagged, Started

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_rank_0_reports_the_straggler(node, spec_of, tmp_path):
    """In both modes, concurrently; and none of a job whose GPUs all have another type."""

    def settings(name):
        return {"step_s": 0.0, "delay_s": 0.3, "taken": str(tmp_path / name)}

    mixed = spec_of("OneIsSlow", max_iterations=10**9, global_batch_size=3, hyperparameters=settings("mixed"))
    of_types = await node.launch(mixed, job_id=node.new_job_id(), num_workers=3, gpu_types_by_rank=("a", "b", "c"))
    await of_types.first(Started)
    jobs, counts = {}, {}
    for name, count in (("OneIsSlow", 2), ("OneIsSlowAndFast", 3)):  # in the fast mode, one of each sample
        spec = spec_of(name, max_iterations=10**9, global_batch_size=3, hyperparameters=settings(name))
        job_id = node.new_job_id()
        counts[job_id] = count
        jobs[job_id] = await node.launch(spec, job_id=job_id, num_workers=3)
    for job_id, workers in jobs.items():
        lagged = await workers.first(Lagged)
        workers.stop()
        await workers.ended()
        slow = [rank for rank in range(3) if "I am slow" in node.log_of(job_id, rank=rank)]
        assert [lagged.rank] == slow
        assert lagged.slowdown > 1.5
        assert lagged.num_virtual_nodes == counts[job_id]
    of_types.stop()
    await of_types.ended()
    assert not of_types.all_of(Lagged)
