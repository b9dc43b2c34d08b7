"""GPUs that are lent and revoked: the fraction of their possible work that a job does (Amoeba, section 6.2, figure 8).

A job of two workers alternately has two more GPUs for a while, and not. Amoeba's two minutes are twenty seconds here,
but longer for models so large that joining workers need more to prepare. The ideal job resizes instantly: with each
number of GPUs it trains at the speed that an undisturbed job has with that number in the same run. Sleeping stands in
for GPU work.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.engine.crew import Crew
from benchmarks.engine.parts import Device, Options, Row, table_of
from benchmarks.engine.stage import stage
from benchmarks.engine.timed import Step, Timed, median_s, steps, timed_spec

PERIOD_S, PERIOD_OF_LARGE_S = 20.0, 120.0
LARGE = 50  # million parameters
_STEP_S = 0.4  # on one worker
_ROUNDS = 2
_FEW_STEPS = 5


def measure(options: Options) -> list[Row]:
    rounds = min(options.rounds, _ROUNDS)
    return [row for size in options.million_parameters for row in asyncio.run(_of_size(size, rounds, options.device))]


async def _of_size(million_parameters: int, rounds: int, device: Device) -> list[Row]:
    period_s = PERIOD_OF_LARGE_S if million_parameters > LARGE else PERIOD_S
    return await measure_transient(million_parameters, Lending(period_s=period_s), rounds=rounds, device=device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lending:
    """Numbers of GPUs. period_s: for how long a job has the lent ones, and then has not."""

    period_s: float
    own: int = 2
    lent: int = 2


async def measure_transient(
    million_parameters: int,
    lending: Lending,
    *,
    rounds: int,
    device: Device = Device.CPU,
    job_class: type[Timed] = Timed,
) -> list[Row]:
    """A row for workers that switch, and one for a stop and a restart at each resize, for comparison.

    job_class: its virtual nodes must divide over both numbers of workers.
    """
    async with stage(device) as there:

        async def row(way: str, rounds: int) -> Row:
            with tempfile.TemporaryDirectory() as notes:
                spec = timed_spec(
                    Path(notes), million_parameters=million_parameters, step_s=_STEP_S, job_class=job_class
                )
                crew = there.crew(way, spec, checkpoint_every_s=1e6)
                measured = await _measured(crew, Path(notes), lending, rounds)
            about = {"way": way, "million_parameters": million_parameters}
            about |= {"period_s": lending.period_s, "rounds": rounds, "own": lending.own, "lent": lending.lent}
            return {**about, **measured}

        return [await row("gone-over", rounds), await row("stopped-and-resumed", 1)]


async def _measured(crew: Crew, notes: Path, lending: Lending, rounds: int) -> Row:
    own = lending.own
    await crew.start(own)
    await asyncio.sleep(_FEW_STEPS * _STEP_S / own)
    owned: list[tuple[float, int]] = []  # start time, number
    for _ in range(rounds):
        for num_workers in (own + lending.lent, own):
            began_s = time.monotonic()
            owned.append((began_s, num_workers))
            await _change(crew, num_workers)
            await asyncio.sleep(began_s + lending.period_s - time.monotonic())
            while not _has_stepped(notes, num_workers, began_s):
                await asyncio.sleep(_STEP_S)
    until_s = time.monotonic()
    taken = steps(notes)
    await crew.suspend()
    return shares(taken, owned, until_s)


def _has_stepped(notes: Path, num_workers: int, since_s: float) -> bool:
    """A machine may be too busy for one step in a period."""
    return any(step.num_workers == num_workers and step.began_s >= since_s for step in steps(notes))


async def _change(crew: Crew, num_workers: int) -> None:
    if crew.job_id == "gone-over":
        await crew.resize(num_workers)
    else:
        await crew.suspend()
        await crew.start(num_workers)


def shares(taken: Sequence[Step], owned: Sequence[tuple[float, int]], until_s: float) -> dict[str, Any]:
    """Fractions of the ideal, and of the work without the lent GPUs. owned: start times and numbers of GPUs.

    breaks_even_s: how long GPUs must be lent for the steps that two changes cost.
    """
    sizes = {num_workers for _, num_workers in owned}
    rates = {n: 1 / median_s([step for step in taken if step.num_workers == n]) for n in sizes}
    ends_s = [*(began_s for began_s, _ in owned[1:]), until_s]
    ideal = sum((end_s - began_s) * rates[n] for (began_s, n), end_s in zip(owned, ends_s, strict=True))
    num_steps = sum(owned[0][0] <= step.began_s < until_s for step in taken)
    alone = (until_s - owned[0][0]) * rates[min(sizes)]
    lost_each_time = (ideal - num_steps) / (len(owned) / 2)
    return {
        "steps_per_s": {str(n): round(rate, 3) for n, rate in sorted(rates.items())},
        "steps": num_steps,
        "of_ideal": round(num_steps / ideal, 4),
        "of_own_gpus_alone": round(num_steps / alone, 4),
        "breaks_even_s": round(max(lost_each_time, 0.0) / (rates[max(sizes)] - rates[min(sizes)]), 3),
    }


def table(rows: list[Row]) -> Table:
    drawn = table_of(
        "Two GPUs lent and revoked",
        *("way", "parameters", "every", "share of the ideal", "x without them"),
    )
    for row in rows:
        drawn.add_row(
            row["way"],
            f"{row['million_parameters']} M",
            f"{row['period_s']:.0f} s",
            f"{row['of_ideal']:.1%}",
            f"{row['of_own_gpus_alone']:.2f}",
        )
    return drawn
