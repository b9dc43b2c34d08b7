"""Random resizes and kills of a job on fast and slow slots: the state at each step beside that of one worker."""

import asyncio
from collections.abc import Iterable

from benchmarks.engine.schedules import prove
from benchmarks.report import Measured, Row

_VIRTUAL_NODES = 16
_SLOTS = {"4:1": (0.8, 0.2), "2:1": (0.8, 0.4)}  # shares of a core, in turn by rank


def measure_resizes(*, num_schedules: int) -> Measured:
    """Measure each ratio of speeds. A schedule has ten events, most of them resizes or kills; each worker has another
    random number of virtual nodes in each generation."""
    return {
        ratio: asyncio.run(prove(_VIRTUAL_NODES, range(num_schedules), is_uneven=True, cpu_shares=shares))
        for ratio, shares in _SLOTS.items()
    }


def rows(measured: Measured) -> Iterable[Row]:
    for ratio, row in measured.items():
        beside = (
            f"{row['schedules']} schedules, {row['generations']} generations, {row['killed']} workers killed, "
            f"{row['states_compared']:,} states compared"
        )
        yield Row(f"states at {ratio} that differ from one worker's", f"{len(row['differences'])}", "0", beside)
        yield Row(f"schedules at {ratio} that did not finish", f"{len(row['unfinished'])}", "0")
