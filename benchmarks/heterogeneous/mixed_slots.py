"""Steps of real jobs on CPU slots of two shares: predicted by the solver, and measured; even and uneven splits.

All slots together have less than the machine's cores, so their times follow their CPU time, and other load hardly
changes them (docs/adr/0004). Predictions rest on profiling runs on each type alone, as in a pool.
"""

import asyncio
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, cycle
from typing import NamedTuple

from benchmarks.engine.elastic import Engine, running_engine
from benchmarks.heterogeneous.mixed_models import MODELS
from benchmarks.heterogeneous.slot_steps import profile_on, profiled, profiling_run, submitted
from benchmarks.report import Measured, Row
from elasticflow.shared.runtime.process.local_hardware import cpu_slot_type
from elasticflow.shared.scheduling.heterogeneous.measured_step_times import JobStepTimes, job_step_times
from elasticflow.shared.scheduling.heterogeneous.virtual_node_split import (
    GpusOfType,
    VirtualNodeSplit,
    split_virtual_nodes,
)

FAST = 0.4  # cores
SLOW_BY_RATIO: Mapping[int, float] = {4: 0.1, 2: 0.2}
NUM_MIXES = 20
_MIXES = ((1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (1, 3), (2, 3))  # fast and slow slots
_SUM = (2, 8)  # fast and slow slots at 4:1
_ITERATIONS = 8


class _Mix(NamedTuple):
    model: str
    ratio: int
    num_fast: int
    num_slow: int

    @property
    def shares(self) -> tuple[float, ...]:
        return (FAST,) * self.num_fast + (SLOW_BY_RATIO[self.ratio],) * self.num_slow


def measure_mixed_slots(*, num_mixes: int) -> Measured:
    """Of at least one mix, and the sum of both throughputs for each model."""
    return asyncio.run(_measured(num_mixes))


async def _measured(num_mixes: int) -> Measured:
    chosen = [
        _Mix(model, ratio, *slots)
        for model, ratio, slots in zip(cycle(MODELS), cycle((4, 4, 4, 2, 2, 2)), _cycled(num_mixes), strict=False)
    ]
    async with running_engine() as engine:
        times = {
            (model, ratio): await _profile(engine, model, ratio)
            for model, ratio in dict.fromkeys((mix.model, mix.ratio) for mix in chosen)
        }
        mixes = [await _of_mix(engine, mix, times[mix.model, mix.ratio]) for mix in chosen]
        models = dict.fromkeys(mix.model for mix in chosen if mix.ratio == 4)
        sums = [await _of_sum(engine, model, times[model, 4]) for model in models]
    return {"fast_share": FAST, "mixes": mixes, "sums": sums}


def _cycled(number: int) -> Iterator[tuple[int, int]]:
    slots = cycle(_MIXES)
    return (next(slots) for _ in range(number))


async def _profile(engine: Engine, model: str, ratio: int) -> JobStepTimes:
    state = await profile_on(engine, MODELS[model], (FAST, SLOW_BY_RATIO[ratio]), iterations=_ITERATIONS)
    times = job_step_times(state, submitted(engine, MODELS[model]))
    assert times is not None
    return times


async def _of_mix(engine: Engine, mix: _Mix, times: JobStepTimes) -> Measured:
    """Predicted and measured steps of the best split over all slots, and the even one's."""
    split = _split(times, mix)
    counts = _by_rank(split)
    measured_s = await _step_s(engine, mix, counts)
    return {
        **mix._asdict(),
        "virtual_nodes_by_rank": counts,
        "predicted_s": split.mixed_s,
        "measured_s": measured_s,
        "even_s": await _step_s(engine, mix, ()),
        "even_predicted_s": _predicted_even_s(times, mix),
    }


async def _of_sum(engine: Engine, model: str, times: JobStepTimes) -> Measured:
    """Steps per second of all slots together, and of each type alone."""
    mix = _Mix(model, 4, *_SUM)
    counts = _by_rank(_split(times, mix))
    fast, slow = mix._replace(num_slow=0), mix._replace(num_fast=0)
    return {
        **mix._asdict(),
        "virtual_nodes_by_rank": counts,
        "mixed_per_s": 1 / await _step_s(engine, mix, counts),
        "fast_per_s": 1 / await _step_s(engine, fast, ()),
        "slow_per_s": 1 / await _step_s(engine, slow, ()),
        "without_communication_s": max(
            times.at(recorded, count).step_s for recorded, part in _split(times, mix).counts.items() for count in part
        ),
    }


def _split(times: JobStepTimes, mix: _Mix) -> VirtualNodeSplit:
    """Over all slots, by recorded type: even if one type alone is as fast."""
    numbers = {"": mix.num_fast, cpu_slot_type(SLOW_BY_RATIO[mix.ratio]): mix.num_slow}
    types = [
        GpusOfType(name=recorded, num_gpus=number, step_s_V=times.step_s_V(recorded))
        for recorded, number in numbers.items()
        if number
    ]
    split = split_virtual_nodes(types, times.num_virtual_nodes, times.communication, least_gain=0.0)
    assert isinstance(split, VirtualNodeSplit)
    return split


def _by_rank(split: VirtualNodeSplit) -> tuple[int, ...]:
    """Fast slots first. A slot that the solver leaves out has no virtual node."""
    return tuple(chain(split.counts.get("", ()), *(part for name, part in split.counts.items() if name)))


def _predicted_even_s(times: JobStepTimes, mix: _Mix) -> float:
    num_slots = mix.num_fast + mix.num_slow
    largest = -(-times.num_virtual_nodes // num_slots)
    slow = cpu_slot_type(SLOW_BY_RATIO[mix.ratio])
    return times.at(slow, largest).step_s + times.communication.at(num_slots)


async def _step_s(engine: Engine, mix: _Mix, counts: tuple[int, ...]) -> float:
    """counts: of the first slots; empty: an even division over all of them."""
    run = profiling_run(engine, MODELS[mix.model], iterations=_ITERATIONS)
    shares = mix.shares[: len(counts)] if counts else mix.shares
    return 1 / (await profiled(engine, run, shares, counts)).iterations_per_s


def rows(measured: Measured) -> Iterator[Row]:
    errors = {ratio: list[float]() for ratio in SLOW_BY_RATIO}
    for mix in measured["mixes"]:
        errors[mix["ratio"]].append(abs(mix["predicted_s"] / mix["measured_s"] - 1.0))
        yield Row(
            f"{mix['model']}, {mix['num_fast']} + {mix['num_slow']} slots at {mix['ratio']}:1: predicted / measured step",
            f"{mix['predicted_s'] / mix['measured_s']:.3f}",
            "0.90 to 1.10",
            f"{mix['measured_s'] * 1e3:.0f} ms; even {mix['measured_s'] / mix['even_s'] - 1:+.0%}, "
            f"by prediction {mix['predicted_s'] / mix['even_predicted_s'] - 1:+.0%}",
        )
    every = [error for of_ratio in errors.values() for error in of_ratio]
    yield Row(
        "error of the prediction, mean / worst",
        f"{_mean(every):.1%} / {max(every):.1%}",
        "5 % / 10 %",
        "VirtualFlow: 5.6 %",
    )
    for total in measured["sums"]:
        both = total["fast_per_s"] + total["slow_per_s"]
        yield Row(
            f"{total['model']}, 2 + 8 slots at 4:1: throughput against the sum of both types alone",
            f"{total['mixed_per_s'] / both:.3f}",
            ">= 0.90",
            f"fast alone {total['mixed_per_s'] / total['fast_per_s'] - 1:+.1%}, slow alone "
            f"{total['mixed_per_s'] / total['slow_per_s'] - 1:+.1%}; VirtualFlow +42.3 %, +52.4 %",
        )


def _mean(errors: Sequence[float]) -> float:
    return statistics.fmean(errors)
