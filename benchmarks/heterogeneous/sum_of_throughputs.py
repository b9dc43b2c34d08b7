"""Fast and slow CPU slots together against the sum of both throughputs, by their communication.

Without communication, all slots together would reach the sum F + S of both types alone. With it, their step takes
1 / (F + S) + c seconds, where F and S are without communication, and c is that of the slow slots by their profile.
"""

from collections.abc import Iterator, Sequence

from benchmarks.engine.elastic import Engine
from benchmarks.engine.models import Trained
from benchmarks.heterogeneous.mixed_models import NUM_VIRTUAL_NODES
from benchmarks.heterogeneous.slot_steps import step_s
from benchmarks.report import Measured, Row
from elasticflow.shared.scheduling.heterogeneous.communication_times import CommunicationTimes

SUMS = ((1, 4), (2, 8))  # fast and slow slots: as much of both
_FAST, _SLOW = 0.4, 0.1  # cores
_ITERATIONS = 3


async def measured_sum(
    engine: Engine, model: type[Trained], slots: tuple[int, int], on_slow: CommunicationTimes
) -> Measured:
    """Steps per second of all slots together, and of each type alone. on_slow: communication of the slow slots."""
    num_fast, num_slow = slots
    fast, slow = (_FAST,) * num_fast, (_SLOW,) * num_slow
    each = NUM_VIRTUAL_NODES // (4 * num_fast + num_slow)
    counts = (4 * each,) * num_fast + (each,) * num_slow
    mixed_s = await step_s(engine, model, fast + slow, counts, iterations=_ITERATIONS)
    fast_s = await step_s(engine, model, fast, (), iterations=_ITERATIONS)
    slow_s = await step_s(engine, model, slow, (), iterations=_ITERATIONS)
    fast_alone_s = fast_s - on_slow.at(num_fast) * _SLOW / _FAST
    computation_s = 1 / (1 / fast_alone_s + 1 / (slow_s - on_slow.at(num_slow)))
    communication_s = on_slow.at(num_fast + num_slow)
    both_per_s = 1 / fast_s + 1 / slow_s
    return {
        "model": model.__name__,
        "samples": model.BATCH_SIZE,
        "num_fast": num_fast,
        "num_slow": num_slow,
        "mixed_per_s": 1 / mixed_s,
        "fast_per_s": 1 / fast_s,
        "slow_per_s": 1 / slow_s,
        "computation_s": computation_s,
        "communication_s": communication_s,
        "share_of_sum": 1 / mixed_s / both_per_s,
        "share_by_law": 1 / (computation_s + communication_s) / both_per_s,
    }


def sum_rows(sums: Sequence[Measured]) -> Iterator[Row]:
    for total in sums:
        yield Row(
            f"{total['model']}, {total['samples']} samples, {total['num_fast']} + {total['num_slow']} slots at 4:1: "
            "throughput against the sum of both types alone",
            f"{total['share_of_sum']:.3f}",
            ">= 0.90 where communication allows",
            f"by its communication {total['share_by_law']:.3f}; communication / computation "
            f"{total['communication_s'] / total['computation_s']:.2f}; fast alone "
            f"{total['mixed_per_s'] / total['fast_per_s'] - 1:+.1%}, slow alone "
            f"{total['mixed_per_s'] / total['slow_per_s'] - 1:+.1%}; VirtualFlow +42.3 %, +52.4 %",
        )
