"""A real pool: what a worker wrote last is in the report of its failure, for users without the nodes' storage."""

from dataclasses import replace
from pathlib import Path

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.state.job import Phase
from tests.support.real_pool import CONFIG, job, running_pool


async def test_the_last_lines_of_a_worker_that_died_are_reported(tmp_path: Path) -> None:
    config = replace(CONFIG, max_restarts=1)
    async with running_pool(tmp_path, num_nodes=1, replicas={}, config=config) as pool:
        function = "tests.support.user_code.dying_jobs:Dies"
        await pool.acknowledged(job(JobClass.BEST_EFFORT, training_function=function), "dying")
        ended = (await pool.ended(["dying"])).ended_jobs["dying"]
        assert ended.phase is Phase.FAILED
        assert ended.last_lines.splitlines()[-1] == "the disk of the data set is gone"
        history = await pool.client.history("dying")
    reports = {entry.type: entry.lines[-1] for entry in history if entry.lines}
    assert reports == dict.fromkeys(("WorkerCrashed", "JobFailed"), "the disk of the data set is gone")
