"""Steps of real jobs on CPU slots of two shares: predicted by the solver, and measured; even and uneven splits.

The sums of throughputs are in sum_of_throughputs.py.

All slots together have less than the machine's cores, so their times follow their CPU time, and other load hardly
changes them (docs/adr/0004). Predictions rest on profiling runs on each type alone, as in a pool.
"""

import asyncio
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, cycle
from typing import NamedTuple

from benchmarks.engine.elastic import Engine, running_engine
from benchmarks.heterogeneous.mixed_models import MODELS, MORE_COMPUTATION
from benchmarks.heterogeneous.slot_steps import profile_on, step_s, submitted
from benchmarks.heterogeneous.sum_of_throughputs import SUMS, measured_sum, sum_rows
from benchmarks.report import Measured, Row
from elasticflow.services.executor.worker.steps.virtual_nodes import VirtualNodes
from elasticflow.shared.runtime.process.local_hardware import cpu_slot_type
from elasticflow.shared.scheduling.heterogeneous.measured_step_times import JobStepTimes, job_step_times
from elasticflow.shared.scheduling.heterogeneous.virtual_node_split import (
    VirtualNodeSplit,
    split_virtual_nodes,
)

FAST = 0.4  # cores
SLOW_BY_RATIO: Mapping[int, float] = {4: 0.1, 2: 0.2}
NUM_MIXES = 20
_MIXES = ((1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (1, 3), (2, 3))  # fast and slow slots
_ITERATIONS = 5  # of each measurement


class _Mix(NamedTuple):
    model: str
    ratio: int
    num_fast: int
    num_slow: int

    @property
    def shares(self) -> tuple[float, ...]:
        return (FAST,) * self.num_fast + (SLOW_BY_RATIO[self.ratio],) * self.num_slow

    @property
    def slow_type(self) -> str:
        return cpu_slot_type(SLOW_BY_RATIO[self.ratio])


def measure_mixed_slots(*, num_mixes: int) -> Measured:
    """num_mixes: at least one. The sums are those of their models."""
    return asyncio.run(measured_mixed_slots(num_mixes))


async def measured_mixed_slots(num_mixes: int, sums: Sequence[tuple[int, int]] = SUMS) -> Measured:
    """Of so many mixes, and of the sum of both throughputs of these numbers of fast and slow slots."""
    chosen = [
        _Mix(model, ratio, *slots)
        for model, ratio, slots in zip(cycle(MODELS), cycle((4, 4, 4, 2, 2, 2)), _cycled(num_mixes), strict=False)
    ]
    ratios = dict.fromkeys(mix.ratio for mix in chosen)
    async with running_engine() as engine:
        times = {model: await _profile(engine, model, ratios) for model in dict.fromkeys(mix.model for mix in chosen)}
        mixes = [await _of_mix(engine, mix, times[mix.model]) for mix in chosen]
        measured_sums = [
            await measured_sum(engine, model, slots, times[name].communication[cpu_slot_type(SLOW_BY_RATIO[4])])
            for slots in sums
            for models in (MODELS, MORE_COMPUTATION)
            for name, model in models.items()
            if name in times
        ]
    return {"fast_share": FAST, "mixes": mixes, "sums": measured_sums}


def _cycled(number: int) -> Iterator[tuple[int, int]]:
    slots = cycle(_MIXES)
    return (next(slots) for _ in range(number))


async def _profile(engine: Engine, model: str, ratios: Iterable[int]) -> JobStepTimes:
    shares = (FAST, *(SLOW_BY_RATIO[ratio] for ratio in ratios))
    state = await profile_on(engine, MODELS[model], shares, iterations=_ITERATIONS)
    times = job_step_times(state, submitted(engine, MODELS[model]))
    assert times is not None
    return times


async def _of_mix(engine: Engine, mix: _Mix, times: JobStepTimes) -> Measured:
    """Predicted and measured steps of the split that balances the computation, and the even one's."""
    counts = _balanced(times, mix)
    return {
        **mix._asdict(),
        "virtual_nodes_by_rank": counts,
        "predicted_s": _predicted_s(times, mix, counts),
        "measured_s": await _step_s(engine, mix, counts),
        "even_s": await _step_s(engine, mix, ()),
        "even_predicted_s": _predicted_s(times, mix, _even(times, mix)),
    }


def _balanced(times: JobStepTimes, mix: _Mix) -> tuple[int, ...]:
    """The virtual nodes of each slot, the fast ones first, with the shortest computation."""
    types = [times.gpus(recorded, number) for recorded, number in (("", mix.num_fast), (mix.slow_type, mix.num_slow))]
    split = split_virtual_nodes(types, times.num_virtual_nodes, least_gain=0.0)
    assert isinstance(split, VirtualNodeSplit)
    parts = [split.counts.get(gpus.name, ()) for gpus in types]
    return tuple(
        chain.from_iterable((*part, *(0,) * (g.num_gpus - len(part))) for g, part in zip(types, parts, strict=True))
    )


def _even(times: JobStepTimes, mix: _Mix) -> tuple[int, ...]:
    num_slots = mix.num_fast + mix.num_slow
    virtual_nodes = VirtualNodes(count=times.num_virtual_nodes, global_batch_size=times.global_batch_size)
    return tuple(len(virtual_nodes.block(rank, num_slots)) for rank in range(num_slots))


def _predicted_s(times: JobStepTimes, mix: _Mix, counts: Sequence[int]) -> float:
    """The slowest slot's computation and the communication. Source: VirtualFlow, section 5.1.2."""
    types = ("",) * mix.num_fast + (mix.slow_type,) * mix.num_slow
    return max(
        times.gpus(recorded, 1).step_s(count, len(counts))
        for recorded, count in zip(types, counts, strict=True)
        if count
    )


async def _step_s(engine: Engine, mix: _Mix, counts: tuple[int, ...]) -> float:
    """counts: virtual nodes of each slot; empty: an even division."""
    return await step_s(engine, MODELS[mix.model], mix.shares, counts, iterations=_ITERATIONS)


def rows(measured: Measured) -> Iterator[Row]:
    errors = {ratio: list[float]() for ratio in SLOW_BY_RATIO}
    mixes = measured["mixes"]
    for mix in mixes:
        errors[mix["ratio"]].append(abs(mix["predicted_s"] / mix["measured_s"] - 1.0))
        yield Row(
            f"{mix['model']}, {mix['num_fast']} + {mix['num_slow']} slots at {mix['ratio']}:1: predicted / measured",
            f"{mix['predicted_s'] / mix['measured_s']:.3f}",
            "0.90 to 1.10",
            f"{mix['measured_s'] * 1e3:.0f} ms; even {mix['measured_s'] / mix['even_s'] - 1:+.0%}, "
            f"by prediction {mix['predicted_s'] / mix['even_predicted_s'] - 1:+.0%}",
        )
    every = [error for of_ratio in errors.values() for error in of_ratio]
    yield Row(
        "error of the prediction, mean / worst",
        f"{statistics.fmean(every):.1%} / {max(every):.1%}",
        "5 % / 10 %",
        "VirtualFlow: 5.6 %",
    )
    gains = [
        abs(mix["even_s"] / mix["measured_s"] / (mix["even_predicted_s"] / mix["predicted_s"]) - 1.0) for mix in mixes
    ]
    yield Row(
        "uneven over even split: measured against predicted, mean / worst",
        f"{statistics.fmean(gains):.1%} / {max(gains):.1%}",
        "3 %",
    )
    yield from sum_rows(measured["sums"])
