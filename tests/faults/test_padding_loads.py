"""Kill -9 at random moments while a padding load is executed: each result arrives once, equal to that of a quiet run.

EF_FAULT_SEEDS=20 runs twenty seeds instead of one, and EF_FAULT_FIRST_SEED=7 begins with the seventh: a failure names
its seed. `python -m benchmarks.padding --only kills --kills 1000 --tasks 10000` is the long version.
"""

import os

import pytest

from benchmarks.padding.kills import VICTIMS, measure_kills

FIRST_SEED = int(os.environ.get("EF_FAULT_FIRST_SEED", "0"))
NUM_SEEDS = int(os.environ.get("EF_FAULT_SEEDS", "1"))
NUM_KILLS, NUM_TASKS = 2 * len(VICTIMS), 600


@pytest.mark.nightly("integration/test_padding_loads.py kills runners, executors and servers once")
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + NUM_SEEDS))
async def test_a_load_survives_all_kills(seed: int) -> None:
    measured = await measure_kills(num_kills=NUM_KILLS, num_tasks=NUM_TASKS, seed=seed)
    assert measured["kills"] == dict.fromkeys(sorted(VICTIMS), 2)
    assert (measured["results"], measured["different_results"]) == (NUM_TASKS, 0)
    assert measured["finished_events"] == 1
