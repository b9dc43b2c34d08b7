"""A live pool on two nodes with a slow link: a promise counts on the speed of the place that its job gets."""

import shutil

import pytest

from benchmarks.partitions.network import run_seed, why_not
from benchmarks.slow_links.one_run import MEGABITS_PER_S, Result

REASON = why_not() or ("" if shutil.which("tc") else "not installed: tc")


@pytest.mark.nightly("a pool of some minutes; simulation/test_places.py has places without a live pool")
@pytest.mark.skipif(bool(REASON), reason=REASON)
@pytest.mark.timeout(900)
async def test_a_job_moves_so_that_two_near_gpus_are_free_and_the_promise_is_kept() -> None:
    result = Result(**await run_seed("benchmarks.slow_links.one_run", 0, (str(MEGABITS_PER_S),)))
    assert len(set(result.places)) == 1  # each node had one free GPU
    assert len(result.moved) == 1
    assert result.is_kept, result
