"""Partitions of a NATS cluster: a worker has ended before the ledger holds the loss of its node.

`python -m benchmarks.partitions` runs more seeds. Only as root: each seed has network namespaces of its own.
"""

import pytest

from benchmarks.partitions.__main__ import run_seed
from benchmarks.partitions.network import why_not
from benchmarks.partitions.one_run import PARTITIONS

WHY_NOT = why_not()


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.parametrize("seed", [0, 2], ids=lambda seed: PARTITIONS[seed].name)
async def test_no_worker_trains_on_a_node_that_counts_as_lost(seed: int) -> None:
    result = await run_seed(seed)
    assert result.overlap_s is not None, "the majority reports the node as lost"
    assert result.overlap_s < 0
    assert result.rejoined
