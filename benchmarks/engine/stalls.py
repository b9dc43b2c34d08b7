"""What a job that trains feels of what is done beside it: checkpoints, and newcomers that prepare.

stall_s: what a checkpoint every ten steps adds to the training, for each; the goal is less than a step.
incumbent_speed: steps in a second while a newcomer prepares, on a core of its own where there are two, beside those
without one.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from rich.table import Table

from benchmarks.engine.parts import Options, Row, in_ms, table_of
from benchmarks.engine.stage import Stage, stage
from benchmarks.engine.timed import Step, mean_s, steps, timed_spec

_STEP_S = 0.1  # least
_STEPS_OF_A_CHECKPOINT = 10
_TURN_S = 4.0  # with checkpoints, and without
_STEADY_S = 1.0
_ROUNDS = 3
_LARGEST = 25  # million parameters: larger ones take seconds for a step here


def measure(options: Options) -> list[Row]:
    return [
        asyncio.run(measure_stalls(size, rounds=min(options.rounds, _ROUNDS), turn_s=_TURN_S))
        for size in options.million_parameters
        if size <= _LARGEST
    ]


async def measure_stalls(million_parameters: int, *, rounds: int, turn_s: float) -> Row:
    """incumbent_speed: None if no newcomer took as long as a step."""
    with_s: list[float] = []
    without_s: list[float] = []
    alone: list[Step] = []
    beside: list[Step] = []
    async with stage() as there:
        for turn in range(rounds):  # in turns: what else the machine does meets both
            step_s = await _mean_step(there, f"without-{turn}", million_parameters, turn_s, every_s=1e6)
            without_s.append(step_s)
            every_s = _STEPS_OF_A_CHECKPOINT * step_s
            with_s.append(
                await _mean_step(there, f"with-{turn}", million_parameters, turn_s, every_s=every_s)
            )
            before, meanwhile = await _steps_of_an_incumbent(there, f"join-{turn}", million_parameters)
            alone += before
            beside += meanwhile
    step_s = statistics.median(without_s)
    return {
        "million_parameters": million_parameters,
        "step_s": step_s,
        "stall_s": _STEPS_OF_A_CHECKPOINT * (statistics.median(with_s) - step_s),
        "incumbent_speed": mean_s(alone) / mean_s(beside) if beside else None,
        "rounds": rounds,
    }


async def _mean_step(
    there: Stage, job_id: str, million_parameters: int, turn_s: float, *, every_s: float
) -> float:
    """Seconds, on two workers, with a checkpoint every so often."""
    with tempfile.TemporaryDirectory() as notes:
        spec = timed_spec(Path(notes), million_parameters=million_parameters, step_s=2 * _STEP_S)
        crew = there.crew(job_id, spec, checkpoint_every_s=every_s)
        await crew.start(2)
        await asyncio.sleep(_STEADY_S)
        began_s = time.monotonic()
        await asyncio.sleep(turn_s)
        taken = [step for step in steps(Path(notes)) if step.began_s >= began_s]
        await crew.suspend()
    return mean_s(taken)


async def _steps_of_an_incumbent(
    there: Stage, job_id: str, million_parameters: int
) -> tuple[list[Step], list[Step]]:
    """Of one worker that computes without rest: before another one comes, and while that one prepares."""
    with tempfile.TemporaryDirectory() as notes:
        spec = timed_spec(Path(notes), million_parameters=million_parameters, step_s=0.0)
        crew = there.crew(job_id, spec, checkpoint_every_s=1e6)
        await crew.start(1)
        while len(alone := steps(Path(notes))) < 2 * _STEPS_OF_A_CHECKPOINT:
            await asyncio.sleep(_STEP_S)
        asked_s = time.monotonic()
        await crew.go_over([crew.holders[0], None])
        taken = steps(Path(notes))
        await crew.suspend()
    beside = [step for step in taken if step.num_workers == 1 and step.began_s >= asked_s]
    return alone[_STEPS_OF_A_CHECKPOINT:], beside[:-1]  # the last one ends with the switch


def table(rows: list[Row]) -> Table:
    drawn = table_of(
        "Beside the training",
        "parameters",
        "step, ms",
        "stall of a checkpoint, ms",
        "speed beside a newcomer",
    )
    for row in rows:
        drawn.add_row(
            f"{row['million_parameters']} M",
            *in_ms(row, "step_s", "stall_s"),
            f"{row['incumbent_speed']:.1%}",
        )
    return drawn
