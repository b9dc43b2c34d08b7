"""How much background work slows a training job: checkpoints, and joining workers that prepare.

stall_s: what a checkpoint adds to ten steps, compared with ten without one, alternating; the goal is less than a step.
staying_speed: steps per second while a joining worker prepares, on a core of its own where there are two, divided by
those without one.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from rich.table import Table

from benchmarks.engine.parts import Device, Options, Row, in_ms, table_of
from benchmarks.engine.stage import Stage, stage
from benchmarks.engine.timed import Step, mean_s, steps, timed_spec
from elasticflow.shared.messages.worker_protocol.to_worker import WriteCheckpoint

_STEP_S = 0.1  # at least
_STEPS_OF_A_CHECKPOINT = 10
_ROUNDS = 4


def measure(options: Options) -> list[Row]:
    rounds = min(options.rounds, _ROUNDS)
    return [
        asyncio.run(measure_stalls(size, rounds=rounds, device=options.device)) for size in options.million_parameters
    ]


async def measure_stalls(million_parameters: int, *, rounds: int, device: Device = Device.CPU) -> Row:
    """staying_speed: None if no preparation took as long as a step."""
    alone: list[Step] = []
    beside: list[Step] = []
    async with stage(device) as there:
        stall = await measure_checkpoint_stall(there, million_parameters, rounds)
        for turn in range(rounds):
            before, meanwhile = await _steps_of_a_staying_worker(there, f"join-{turn}", million_parameters)
            alone += before
            beside += meanwhile
    return {
        "million_parameters": million_parameters,
        **stall,
        "staying_speed": mean_s(alone) / mean_s(beside) if beside else None,
        "rounds": rounds,
    }


async def measure_checkpoint_stall(there: Stage, million_parameters: int, rounds: int) -> Row:
    """step_s and stall_s, on two workers. Steps without a checkpoint alternate with others: other load affects both."""
    with tempfile.TemporaryDirectory() as notes:
        spec = timed_spec(Path(notes), million_parameters=million_parameters, step_s=2 * _STEP_S)
        crew = there.crew("stalls", spec, checkpoint_every_s=1e6)
        await crew.start(2)

        async def turn(request: int) -> int:
            """The number of its first step. request: of a checkpoint at its beginning; 0 for none."""
            first = len(steps(Path(notes)))
            if request:
                crew.holders[0].handle.send(WriteCheckpoint(request=request))
            while len(steps(Path(notes))) < first + _STEPS_OF_A_CHECKPOINT:
                await asyncio.sleep(_STEP_S / 4)
            return first

        await turn(1)  # the first one allocates its memory
        firsts = [(await turn(0), await turn(2 + number)) for number in range(rounds)]
        taken = [step.took_s for step in steps(Path(notes))]
        await crew.suspend()
    without_s, with_s = (
        [sum(taken[first : first + _STEPS_OF_A_CHECKPOINT]) for first in turns] for turns in zip(*firsts, strict=True)
    )
    return {
        "step_s": statistics.median(without_s) / _STEPS_OF_A_CHECKPOINT,
        "stall_s": statistics.median(b - a for a, b in zip(without_s, with_s, strict=True)),
    }


async def _steps_of_a_staying_worker(
    there: Stage, job_id: str, million_parameters: int
) -> tuple[list[Step], list[Step]]:
    """The steps of one worker that computes without a pause: before another one joins, and while that one prepares."""
    with tempfile.TemporaryDirectory() as notes:
        spec = timed_spec(Path(notes), million_parameters=million_parameters, step_s=0.0)
        crew = there.crew(job_id, spec, checkpoint_every_s=1e6)
        await crew.start(1)
        while len(alone := steps(Path(notes))) < 2 * _STEPS_OF_A_CHECKPOINT:
            await asyncio.sleep(_STEP_S)
        asked_s = time.monotonic()
        await crew.switch([crew.holders[0], None])
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
        "speed beside a joining worker",
    )
    for row in rows:
        drawn.add_row(
            f"{row['million_parameters']} M",
            *in_ms(row, "step_s", "stall_s"),
            f"{row['staying_speed']:.1%}" if row["staying_speed"] else "",
        )
    return drawn
