"""Slots that are lent and revoked: Amoeba's Figure 8. The measurement is that of `benchmarks.engine.transient`."""

import asyncio
from collections.abc import Mapping
from typing import ClassVar

from benchmarks.engine.timed import Timed
from benchmarks.engine.transient import Lending, measure_transient

_WAYS = {"gone-over": "switch", "stopped-and-resumed": "stop-resume"}


class TimedOfTwelve(Timed):
    """Its virtual nodes divide evenly over 2, 3, 4 and 6 workers."""

    BATCH_SIZE = 24
    virtual_nodes: ClassVar[int] = 12


def lent_gpus(*, own: int, lent: int, period_s: float, rounds: int, million_parameters: int) -> Mapping[str, float]:
    """Numbers by way and number of lent slots: the part of the ideal; the work over that of the own slots alone; and
    the shortest interval at which borrowing gains, in seconds.
    """
    rows = asyncio.run(
        measure_transient(
            million_parameters,
            Lending(period_s=period_s, own=own, lent=lent),
            rounds=rounds,
            job_class=TimedOfTwelve,
        )
    )
    numbers = dict[str, float]()
    for row in rows:
        name = f"{_WAYS[row['way']]}-{lent}"
        numbers |= {
            f"part-of-ideal-{name}": row["of_ideal"],
            f"over-own-{name}": row["of_own_gpus_alone"],
            f"break-even-s-{name}": row["breaks_even_s"],
        }
    return numbers
