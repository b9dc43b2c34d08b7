"""A padding load of which jobs take a slot again and again (PaddingTorch, Figure 4), by `benchmarks.padding`."""

import asyncio
from collections.abc import Mapping

from benchmarks.padding.preempted import measure_preempted


def padding(*, num_tasks: int) -> Mapping[str, float]:
    """The time over that of exclusive use, by the paper's intervals; here all times are a tenth."""
    rows = asyncio.run(measure_preempted(num_tasks=num_tasks))
    return {f"every-{10 * row['window_s']:.0f}-s": row["ratio"] for row in rows}
