"""Steps of real jobs on CPU slots of two shares: predicted as the allocator does, and measured; even and uneven splits.

The sums of throughputs are in sum_of_throughputs.py.

All slots together have less than the machine's cores, so their times follow their CPU time, and other load hardly
changes them (docs/adr/0004). Predictions rest on profiling runs on each type alone, as in a pool.
"""

import asyncio
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import NamedTuple

from benchmarks.engine.elastic import Engine, running_engine
from benchmarks.engine.models import Trained
from benchmarks.heterogeneous.mixed_models import MODELS
from benchmarks.heterogeneous.slot_steps import profile_on, step_s, submitted
from benchmarks.heterogeneous.sum_of_throughputs import SUM_ITERATIONS, SUMS, Sum, measured_sum, sum_rows
from benchmarks.papers.published_values import published_value
from benchmarks.report import Measured, Row
from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.shared.runtime.process.local_hardware import cpu_slot_type
from elasticflow.shared.scheduling.heterogeneous.mixed_steps import Counts, MixedSteps, mixed_steps
from elasticflow.shared.state.measured_curve import MeasuredMix

FAST = 0.4  # cores
SLOW_BY_RATIO: Mapping[int, float] = {4: 0.1, 2: 0.2}
NUM_MIXES = 20
_MIXES = ((1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (1, 3), (2, 3))  # fast and slow slots
_ITERATIONS = 9  # of each measurement


class _Mix(NamedTuple):
    model: str
    ratio: int
    num_fast: int
    num_slow: int

    @property
    def shares(self) -> tuple[float, ...]:
        return (FAST,) * self.num_fast + (SLOW_BY_RATIO[self.ratio],) * self.num_slow

    def by_type(self, counts: Sequence[int]) -> Counts:
        """counts: of each slot, the fast ones first. The fast type is the first of the pool: ""."""
        slow_type = cpu_slot_type(SLOW_BY_RATIO[self.ratio])
        return {"": tuple(counts[: self.num_fast]), slow_type: tuple(counts[self.num_fast :])}


def measure_mixed_slots(*, num_mixes: int) -> Measured:
    """num_mixes: at least one. The sums are those of their models."""
    return asyncio.run(measured_mixed_slots(num_mixes))


async def measured_mixed_slots(
    num_mixes: int, sums: Sequence[Sum] = SUMS, *, iterations: int = _ITERATIONS
) -> Measured:
    """Measure `num_mixes` mixes, each in `iterations` iterations; and the sums of both throughputs."""
    chosen = [
        _Mix(model, ratio, *slots)
        for model, ratio, slots in zip(cycle(MODELS), cycle((4, 4, 4, 2, 2, 2)), _cycled(num_mixes), strict=False)
    ]
    ratios = dict.fromkeys(mix.ratio for mix in chosen)
    async with running_engine() as engine:
        names = dict.fromkeys(mix.model for mix in chosen)
        steps = {name: await _profile(engine, MODELS[name], ratios, iterations) for name in names}
        mixes = [await _of_mix(engine, mix, steps[mix.model], iterations) for mix in chosen]
        measured_sums = [
            await measured_sum(engine, each, await _profile(engine, each.model, (4,), SUM_ITERATIONS)) for each in sums
        ]
    return {"fast_share": FAST, "mixes": _corrected(mixes, steps), "sums": measured_sums}


def _cycled(number: int) -> Iterator[tuple[int, int]]:
    slots = cycle(_MIXES)
    return (next(slots) for _ in range(number))


async def _profile(engine: Engine, model: type[Trained], ratios: Iterable[int], iterations: int) -> MixedSteps:
    shares = (FAST, *(SLOW_BY_RATIO[ratio] for ratio in ratios))
    state = await profile_on(engine, model, shares, iterations=iterations)
    steps = mixed_steps(state, submitted(engine, model), own="")
    assert steps is not None
    return steps


async def _of_mix(engine: Engine, mix: _Mix, steps: MixedSteps, iterations: int) -> Measured:
    """Predicted and measured steps of the best split, and the even one's."""
    model, counts, even = MODELS[mix.model], _balanced(steps, mix), _even(steps, mix)
    return {
        **mix._asdict(),
        "virtual_nodes_by_rank": counts,
        "predicted_s": steps.predicted_step_s(mix.by_type(counts)),
        "measured_s": await step_s(engine, model, mix.shares, counts, iterations=iterations),
        "even_s": await step_s(engine, model, mix.shares, even, iterations=iterations),
        "even_predicted_s": steps.predicted_step_s(mix.by_type(even)),
    }


def _balanced(steps: MixedSteps, mix: _Mix) -> tuple[int, ...]:
    """The virtual nodes of each slot with the shortest predicted step in which every slot has one.

    Each further one goes where it ends first: that is the optimum, because a slot's time never falls with its number.
    """
    counts = [1] * (mix.num_fast + mix.num_slow)
    slots = [steps.one_gpu[name] for name, each in mix.by_type(counts).items() for _ in each]
    for _ in range(steps.num_virtual_nodes - len(slots)):
        first = min(range(len(slots)), key=lambda slot: slots[slot].step_s(counts[slot] + 1, len(slots)))
        counts[first] += 1
    return tuple(counts)


def _even(steps: MixedSteps, mix: _Mix) -> tuple[int, ...]:
    num_slots = mix.num_fast + mix.num_slow
    virtual_nodes = VirtualNodes(count=steps.num_virtual_nodes, global_batch_size=steps.num_virtual_nodes)
    return tuple(len(virtual_nodes.block(rank, num_slots)) for rank in range(num_slots))


def _corrected(mixes: Sequence[Measured], steps: Mapping[str, MixedSteps]) -> list[Measured]:
    """The mixes, with the prediction that the allocator has once the earlier mixes of the model have trained."""
    known = dict(steps)
    corrected: list[Measured] = []
    for measured in mixes:
        mix = _Mix(*(measured[field] for field in _Mix._fields))
        counts, before = mix.by_type(measured["virtual_nodes_by_rank"]), known[mix.model]
        corrected.append({**measured, "corrected_s": before.predicted_step_s(counts)})
        trained = MeasuredMix(virtual_nodes=counts, iterations_per_s=1 / measured["measured_s"], at_s=0.0)
        known[mix.model] = replace(before, measured=(*before.measured, trained))
    return corrected


def rows(measured: Measured) -> Iterator[Row]:
    mixes = measured["mixes"]
    for mix in mixes:
        yield Row(
            f"{mix['model']}, {mix['num_fast']} + {mix['num_slow']} slots at {mix['ratio']}:1: predicted / measured",
            f"{mix['predicted_s'] / mix['measured_s']:.3f}",
            "0.90 to 1.10",
            f"{mix['measured_s'] * 1e3:.0f} ms; corrected {mix['corrected_s'] / mix['measured_s']:.3f}; "
            f"even {mix['measured_s'] / mix['even_s'] - 1:+.0%}, "
            f"by prediction {mix['predicted_s'] / mix['even_predicted_s'] - 1:+.0%}",
        )
    for name, predicted in (("the profile", "predicted_s"), ("the profile and earlier mixes", "corrected_s")):
        errors = [abs(mix[predicted] / mix["measured_s"] - 1.0) for mix in mixes]
        yield Row(
            f"error of the prediction by {name}, mean / worst",
            f"{statistics.fmean(errors):.1%} / {max(errors):.1%}",
            "5 % / 10 %",
            f"VirtualFlow: {published_value('VF-F14/error'):.1%}",
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
