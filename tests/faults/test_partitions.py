"""Partitions of a NATS cluster: a worker has ended before the ledger holds the loss of its node, and readers go on.

`python -m benchmarks.partitions` runs more seeds. Only as root: each seed has network namespaces of its own.
"""

import pytest

from benchmarks.partitions.__main__ import ONE_RUN
from benchmarks.partitions.network import run_seed, why_not
from benchmarks.partitions.one_run import PARTITIONS, Result

WHY_NOT = why_not()


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.parametrize("seed", [0, 2], ids=lambda seed: PARTITIONS[seed].name)
async def test_no_worker_trains_on_a_node_that_counts_as_lost(seed: int) -> None:
    result = Result(**await run_seed(ONE_RUN, seed))
    assert result.overlap_s is not None, "the majority reports the node as lost"
    assert result.overlap_s < 0
    assert result.rejoined


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
async def test_a_reader_waits_for_a_leader_that_was_cut_off() -> None:
    """It answers with a shorter ledger for 20 s, as if acknowledged messages were lost."""
    result = await run_seed("tests.support.cut_off_leader", 0)
    assert result["end"] < result["read"], "the server knows less than its reader"
    assert result["next"] == result["read"] + 1
