"""A real pool whose workers are isolated: jobs resize, finish, and leave their checkpoints in the pool's folder."""

from pathlib import Path

import pytest

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.runtime.process.files import readable_by_others
from elasticflow.shared.state.job import Phase
from testbed.fault_evidence import assert_sound
from testbed.real_pool import job, running_pool
from tests.support.executor_process import ROOT
from tests.support.namespaces import skip_without_namespaces


async def test_jobs_of_an_isolated_pool_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_namespaces()
    monkeypatch.setenv("EF_ISOLATION", "required")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the function: workers do not see the working directory
    async with running_pool(tmp_path, num_nodes=2, replicas={}) as pool:
        for job_id in ("first", "second"):
            await pool.acknowledged(job(JobClass.BEST_EFFORT, max_iterations=100), job_id)
        state = await pool.ended(["first", "second"])
        entries = await pool.ledger()
    assert {each.phase for each in state.ended_jobs.values()} == {Phase.FINISHED}
    assert {node.isolation for node in state.nodes.values()} == {"namespaces"}
    (digest,) = {node.workers_secret for node in state.nodes.values()}
    assert len(digest) == 16, "`eflow up` has made a secret of the workers, and all executors have found it"
    assert readable_by_others(pool.data_dir / "workers.secret") is None
    assert all(list((pool.data_dir / "checkpoints" / job_id).glob("*.ckpt")) for job_id in ("first", "second"))
    assert_sound(entries, pool.data_dir)
