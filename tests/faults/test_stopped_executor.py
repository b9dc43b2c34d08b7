"""A stopped executor that is not dead counts as lost, and its workers must not train on.

The progress of its workers is kept, because they write it before the lease ends.
"""

import os
import signal
from dataclasses import replace
from pathlib import Path

from elasticflow.shared.messages.events import GenerationStarted
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.state.job import Job
from testbed.fault_evidence import assert_sound, iterations_trained
from testbed.real_pool import CONFIG, job, running_pool, slowed_down

ITERATIONS = 300
ONE_GPU = {"steps/b8": {1: 40.0}}  # no peer on another node whose end would end it
LOSS_SOON = replace(CONFIG, heartbeat_timeout_s=2.0, curves=ONE_GPU)  # a lease of 1 s, six looks at the ledger in each


def moved_on(job: Job) -> bool:
    """Some of its current generation's steps are known."""
    return job.training and job.iterations_per_s is not None


async def test_workers_of_a_stopped_executor_end_before_their_job_continues_elsewhere(tmp_path: Path) -> None:
    slow_down = tmp_path / "slow_down"
    async with running_pool(tmp_path, num_nodes=2, replicas={}, config=LOSS_SOON) as pool:
        spec = slowed_down(job(JobClass.BEST_EFFORT, max_iterations=ITERATIONS), slow_down)
        await pool.acknowledged(spec, "survivor")
        state = await pool.when(
            lambda state: "survivor" in state.live_jobs and moved_on(state.live_jobs["survivor"]), "it trains"
        )
        node_id = state.live_jobs["survivor"].gpus[0].node_id
        stopped = pool.pid(next(name for name in pool.pids() if name.startswith("executor") and node_id in name))
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        try:
            await pool.when(lambda state: not state.nodes[node_id].alive, f"{node_id} is lost")
            await pool.when(
                lambda state: (job := state.live_jobs["survivor"]).training and node_id not in job.nodes,
                "it trains elsewhere",
            )
            await pool.when(
                lambda state: moved_on(state.live_jobs["survivor"]), "it moves on, beside the remaining jobs"
            )
        finally:
            os.kill(stopped, signal.SIGCONT)
        await pool.when(lambda state: state.nodes[node_id].alive, f"{node_id} is back")
        slow_down.unlink()
        await pool.ended(["survivor"])
        entries = await pool.ledger()
        assert iterations_trained(pool.data_dir, "survivor") == set(range(ITERATIONS))
    assert_sound(entries, pool.data_dir)
    first, *_, last = [entry.message for entry in entries if isinstance(entry.message, GenerationStarted)]
    assert first.iteration == 0 < last.iteration, "no checkpoint was due yet but for the lease"
