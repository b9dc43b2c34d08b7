"""A worker dies: the others wait, take in another, and go on from the step at which they were."""

import signal
from dataclasses import replace
from pathlib import Path

from shared.messages.events import GenerationStarted, WorkerCrashed
from shared.messages.job import JobClass
from tests.faults.evidence import assert_sound, iterations_trained
from tests.faults.pool import CONFIG, job, running_pool

ITERATIONS = 400
TWO_GPUS = replace(CONFIG, curves={"steps/b8": {1: 20.0, 2: 40.0}})


async def test_a_killed_worker_costs_the_step_in_flight_and_no_restart(tmp_path: Path) -> None:
    async with running_pool(tmp_path, num_nodes=2, replicas={}, config=TWO_GPUS) as pool:
        spec = job(JobClass.BEST_EFFORT, max_iterations=ITERATIONS)
        await pool.acknowledged(spec, "survivor")
        state = await pool.when(
            lambda state: (
                (one := state.live_jobs.get("survivor")) is not None
                and len(one.gpus) == 2
                and one.training
                and one.iterations_per_s is not None
            ),
            "it trains on two GPUs",
        )
        generation = state.live_jobs["survivor"].generation
        processes = {process.pid: process for process in pool.workers()}
        processes[max(processes)].send_signal(signal.SIGKILL)
        await pool.ended(["survivor"])
        entries = await pool.ledger()
    facts = [entry.message for entry in entries]
    (crash,) = [fact for fact in facts if isinstance(fact, WorkerCrashed)]
    (again,) = [
        fact for fact in facts if isinstance(fact, GenerationStarted) and fact.generation > generation
    ]
    assert crash.generation == generation
    assert again.resize is not None, "nobody began anew"
    assert again.iteration > 0
    assert again.resize.bytes_moved > 0
    assert iterations_trained(pool.data_dir, "survivor") == set(range(ITERATIONS))
    assert_sound(entries, pool.data_dir)
