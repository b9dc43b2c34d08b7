"""Steps of real jobs on CPU slots of two shares: predicted as the allocator does, and measured; even and uneven splits.

All slots together have less than the machine's cores, so their times follow their CPU time, and other load hardly
changes them (docs/adr/0004). Predictions rest on profiling runs on each type alone, as in a pool.

Work that each worker does once a step is not divided: the update of the weights, and the communication. It takes
longest on a slow slot. So all slots together are below the sum of both types alone; less so if a step has more samples.

Random resizes and kills on fast and slow slots show the state at each step beside that of one worker.
"""

import asyncio
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import NamedTuple

from benchmarks.engine.crew import Engine, running_engine
from benchmarks.engine.models import Trained
from benchmarks.engine.schedules import prove
from benchmarks.heterogeneous.mixed_models import (
    MODELS,
    LargeBatchConvolutions,
    LargeBatchGpt,
    LargestBatchGpt,
    MixedConvolutions,
    MixedGpt,
    MixedPerceptron,
)
from benchmarks.papers.claims_file import published_value
from benchmarks.report import Measured, Row
from elasticflow.services.executor.processes.launcher import Exited
from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.shared.messages.events import NodeJoined, ProfileCompleted, ThroughputMeasured
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.worker_protocol.from_worker import Profiled
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment
from elasticflow.shared.runtime.process.local_hardware import cpu_slot_type
from elasticflow.shared.scheduling.heterogeneous.measured_step_times import Counts, MixedSteps, mixed_steps
from elasticflow.shared.state.fold.ledger_fold import evolve
from elasticflow.shared.state.gpu_types import spec_on
from elasticflow.shared.state.measured_curve import MeasuredMix
from elasticflow.shared.state.pool import PoolState

# --- steps on slots, and the profile there -------------------------------------------------------------


_WORKERS_OF_A_CURVE = (1, 2, 4)
_SLOTS = 16  # of each type, in the pool of the profile


async def profiled(
    engine: Engine, assignment: Assignment, shares: Sequence[float], counts: tuple[int, ...] = ()
) -> Profiled:
    """A profiling run on slots of these shares of a core. counts: virtual nodes by rank; empty: as even as possible."""
    plan = replace(assignment.plan, world_size=len(shares), virtual_nodes_by_rank=counts)
    engine_run = replace(assignment, plan=plan)
    workers = [
        await engine.launcher.launch(replace(engine_run, rank=rank, gpu_index=rank, cpu_share=share))
        for rank, share in enumerate(shares)
    ]
    measured = await engine.receive(Profiled, workers[0], rendezvous=workers)
    for worker in workers:
        await engine.receive(Exited, worker)
    return measured


async def step_s(
    engine: Engine, model: type[Trained], shares: Sequence[float], counts: tuple[int, ...], *, iterations: int
) -> float:
    """The median of so many steps of a new job. counts: as in `profiled`."""
    run = replace(profiling_run(engine, model, iterations=iterations), measures_step_times=False)
    return 1 / (await profiled(engine, run, shares, counts)).iterations_per_s


def profiling_run(engine: Engine, model: type[Trained], *, iterations: int) -> Assignment:
    """The profiling run of a new job; each measurement takes `iterations` steps."""
    return replace(
        engine.assignment(model, million_parameters=1),
        purpose="profile",
        profile_min_s=1e6,
        profile_max_iterations=iterations,
        measures_step_times=True,
    )


async def profile_on(engine: Engine, model: type[Trained], shares: Sequence[float], *, iterations: int) -> PoolState:
    """A pool with slots of each share, on which profiling runs have measured the model. The first share is the first
    type."""
    state, spec = PoolState(), submitted(engine, model)
    for share in shares:
        name = cpu_slot_type(share)
        joined = NodeJoined(
            node_id=name.replace(".", "-"), incarnation="a", num_gpus=_SLOTS, device="cpu", gpu_type=name, at_s=0.0
        )
        state = _folded(state, joined)
    for share in shares:
        key, rates = spec_on(state, spec, cpu_slot_type(share)).measured_key, dict[int, float]()
        for num_workers in _WORKERS_OF_A_CURVE:
            run = profiling_run(engine, model, iterations=iterations)
            measured = await profiled(engine, run, (share,) * num_workers)
            rates[num_workers] = measured.iterations_per_s
            state = _folded(state, _throughput(run, key, num_workers, measured))
        state = _folded(state, ProfileCompleted(profile_key=key, iterations_per_s=rates, at_s=1.0))
    return state


def submitted(engine: Engine, model: type[Trained]) -> JobSpec:
    """The spec whose profile `profile_on` measures."""
    return engine.assignment(model, million_parameters=1).spec


def _throughput(run: Assignment, key: str, num_workers: int, measured: Profiled) -> ThroughputMeasured:
    return ThroughputMeasured(
        profile_key=key,
        num_gpus=num_workers,
        iterations_per_s=measured.iterations_per_s,
        dataset_size=measured.dataset_size,
        single_gpu=measured.single_gpu,
        one_virtual_node_s=measured.one_virtual_node_s,
        job_id=run.job_id,
        generation=1,
        source="profile",
        at_s=float(num_workers),
    )


def _folded(state: PoolState, event: NodeJoined | ThroughputMeasured | ProfileCompleted) -> PoolState:
    return evolve(state, event, state.sequence + 1)


# --- against the sum of both throughputs ---------------------------------------------------------------


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


# --- predicted and measured ----------------------------------------------------------------------------


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


# --- random resizes and kills --------------------------------------------------------------------------


_VIRTUAL_NODES = 16
_SLOT_SHARES = {"4:1": (0.8, 0.2), "2:1": (0.8, 0.4)}  # shares of a core, in turn by rank


def measure_resizes(*, num_schedules: int) -> Measured:
    """Measure each ratio of speeds. A schedule has ten events, most of them resizes or kills; each worker has another
    random number of virtual nodes in each generation."""
    return {
        ratio: asyncio.run(prove(_VIRTUAL_NODES, range(num_schedules), is_uneven=True, cpu_shares=shares))
        for ratio, shares in _SLOT_SHARES.items()
    }


def resize_rows(measured: Measured) -> Iterable[Row]:
    for ratio, row in measured.items():
        beside = (
            f"{row['schedules']} schedules, {row['generations']} generations, {row['killed']} workers killed, "
            f"{row['states_compared']:,} states compared"
        )
        yield Row(f"states at {ratio} that differ from one worker's", f"{len(row['differences'])}", "0", beside)
        yield Row(f"schedules at {ratio} that did not finish", f"{len(row['unfinished'])}", "0")
