"""One job on two CPU slots, of which one is four times as fast: even and uneven splits of its eight virtual nodes.

Both slots have less than a core, so their times follow their CPU time, and other load hardly changes them
(docs/adr/0004). expected_s: the longer of both workers' times if a worker with n of 8 virtual nodes takes n/8 of the
step of its slot alone. The split with the least expected time is the arithmetic optimum. The difference between both
times is what each worker does once a step: the sums, the agreement and the optimizer's step.
"""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import replace

from rich.table import Table

from benchmarks.engine.elastic import Engine, running_engine
from benchmarks.engine.models import GptOfEight
from benchmarks.engine.parts import Options, Row, in_ms, table_of
from elasticflow.services.executor.processes.launcher import Exited
from elasticflow.shared.messages.worker_protocol.from_worker import Profiled

_FAST, _SLOW = 0.4, 0.1  # cores
_COUNT = GptOfEight.virtual_nodes
_SPLITS = ((4, 4), (6, 2), (7, 1))  # of the fast and the slow slot
_ITERATIONS = 6  # of each measurement
_MAX_ROUNDS = 3


def measure(options: Options) -> list[Row]:
    return asyncio.run(measure_uneven(rounds=min(options.rounds, _MAX_ROUNDS), iterations=_ITERATIONS))


async def measure_uneven(*, rounds: int, iterations: int) -> list[Row]:
    """A row for each slot alone, and for each split; medians over rounds that measure all of them in turn."""
    cases: list[tuple[tuple[float, ...], tuple[int, ...]]] = [
        ((_FAST,), (_COUNT,)),
        ((_SLOW,), (_COUNT,)),
        *(((_FAST, _SLOW), split) for split in _SPLITS),
    ]
    seconds: list[list[float]] = [[] for _ in cases]
    async with running_engine() as engine:
        for _ in range(rounds):
            for taken, (shares, counts) in zip(seconds, cases, strict=True):
                taken.append(await _step_s(engine, shares, counts, iterations))
    medians = [statistics.median(taken) for taken in seconds]
    alone_s = dict(zip((_FAST, _SLOW), medians, strict=False))
    return [_row(shares, counts, step_s, alone_s) for (shares, counts), step_s in zip(cases, medians, strict=True)]


def _row(shares: Sequence[float], counts: Sequence[int], step_s: float, alone_s: dict[float, float]) -> Row:
    expected_s = max(alone_s[share] * count / _COUNT for share, count in zip(shares, counts, strict=True))
    return {
        "cpu_shares": list(shares),
        "virtual_nodes_by_rank": list(counts),
        "step_s": step_s,
        "expected_s": expected_s,
        "ratio": step_s / expected_s,
    }


async def _step_s(engine: Engine, shares: Sequence[float], counts: tuple[int, ...], iterations: int) -> float:
    """Median over the steps of a profiling run."""
    assignment = replace(
        engine.assignment(GptOfEight, million_parameters=1),
        purpose="profile",
        world_size=len(shares),
        virtual_nodes_by_rank=counts,
        profile_min_s=1e6,
        profile_max_iterations=iterations,
    )
    workers = [
        await engine.launcher.launch(replace(assignment, rank=rank, gpu_index=rank, cpu_share=share))
        for rank, share in enumerate(shares)
    ]
    profiled = await engine.receive(Profiled, workers[0], rendezvous=workers)
    for worker in workers:
        await engine.receive(Exited, worker)
    return 1 / profiled.iterations_per_s


def table(rows: list[Row]) -> Table:
    drawn = table_of(
        "One step on a fast and a slow slot, milliseconds", "cores", "virtual nodes", "step", "expected", "x"
    )
    optimum_s = min(row["expected_s"] for row in rows if len(row["cpu_shares"]) > 1)
    for row in rows:
        mark = " (optimum)" if row["expected_s"] == optimum_s else ""
        drawn.add_row(
            " + ".join(map(str, row["cpu_shares"])),
            ":".join(map(str, row["virtual_nodes_by_rank"])) + mark,
            *in_ms(row, "step_s", "expected_s"),
            f"{row['ratio']:.3f}",
        )
    return drawn
