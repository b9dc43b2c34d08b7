"""Fast and slow CPU slots together against the sum of both throughputs, by the samples of a step.

Work that each worker does once a step is not divided: the update of the weights, and the communication. It takes
longest on a slow slot. So all slots together are below the sum of both types alone; less so if a step has more samples.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.engine.elastic import Engine
from benchmarks.engine.models import Trained
from benchmarks.heterogeneous.mixed_models import (
    LargeBatchConvolutions,
    LargeBatchGpt,
    LargestBatchGpt,
    MixedConvolutions,
    MixedGpt,
    MixedPerceptron,
)
from benchmarks.heterogeneous.slot_steps import step_s
from benchmarks.papers.published_values import published_value
from benchmarks.report import Measured, Row
from elasticflow.shared.runtime.process.local_hardware import cpu_slot_type
from elasticflow.shared.scheduling.heterogeneous.mixed_steps import MixedSteps

_FAST, _SLOW = 0.4, 0.1  # cores
SUM_ITERATIONS = 3


class Sum(NamedTuple):
    """num_fast, num_slow: slots with as much of the machine in each type."""

    model: type[Trained]
    num_fast: int
    num_slow: int


SUMS = (
    *(Sum(model, 1, 4) for model in (MixedConvolutions, LargeBatchConvolutions, MixedPerceptron)),
    *(Sum(model, 1, 4) for model in (MixedGpt, LargeBatchGpt, LargestBatchGpt)),
    Sum(LargeBatchGpt, 2, 8),
)


async def measured_sum(engine: Engine, each: Sum, steps: MixedSteps) -> Measured:
    """Steps per second of all slots together, and of each type alone. steps: by the profile of the model."""
    model, num_fast, num_slow = each
    fast, slow = (_FAST,) * num_fast, (_SLOW,) * num_slow
    part = steps.num_virtual_nodes // (4 * num_fast + num_slow)
    counts = {"": (4 * part,) * num_fast, cpu_slot_type(_SLOW): (part,) * num_slow}
    mixed_s = await step_s(engine, model, fast + slow, sum(counts.values(), ()), iterations=SUM_ITERATIONS)
    fast_s = await step_s(engine, model, fast, (), iterations=SUM_ITERATIONS)
    slow_s = await step_s(engine, model, slow, (), iterations=SUM_ITERATIONS)
    both_per_s = 1 / fast_s + 1 / slow_s
    return {
        "model": model.__name__,
        "samples": model.BATCH_SIZE,
        "num_fast": num_fast,
        "num_slow": num_slow,
        "mixed_per_s": 1 / mixed_s,
        "fast_per_s": 1 / fast_s,
        "slow_per_s": 1 / slow_s,
        "share_of_sum": 1 / mixed_s / both_per_s,
        "share_by_prediction": 1 / steps.predicted_step_s(counts) / both_per_s,
    }


def sum_rows(sums: Sequence[Measured]) -> Iterator[Row]:
    published = ", ".join(f"{published_value(f'VF-F13/h3-over-{kind}'):+.1%}" for kind in ("v100", "p100"))
    for total in sums:
        yield Row(
            f"{total['model']}, {total['samples']} samples, {total['num_fast']} + {total['num_slow']} slots at 4:1: "
            "throughput against the sum of both types alone",
            f"{total['share_of_sum']:.3f}",
            ">= 0.90 where communication allows",
            f"by prediction {total['share_by_prediction']:.3f}; fast alone "
            f"{total['mixed_per_s'] / total['fast_per_s'] - 1:+.1%}, slow alone "
            f"{total['mixed_per_s'] / total['slow_per_s'] - 1:+.1%}; VirtualFlow {published}",
        )
