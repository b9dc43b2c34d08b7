"""`python -m benchmarks.engine.schedules`: do joins, leaves, kills and stops change the bits? 50 schedules for each V.

A seed determines a schedule: workers join, leave, change ranks, are killed at any moment, also during a switch, are
stopped by a signal, all die, are suspended and restart. The state of every worker at the beginning of every step
(weights, optimizer, buffers and how often each sample was seen) is compared with the run of one undisturbed worker. It
must be bitwise equal. In the fast mode it must be equal up to rounding, with all replicas bitwise equal, and with each
sample seen as often.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.engine.parts import Device
from benchmarks.engine.sensitive import (
    GLOBAL_BATCH_SIZE,
    NUM_SAMPLES,
    Divided,
    OfEight,
    OfFour,
    OfSixteen,
    Sensitive,
    Smooth,
)
from benchmarks.engine.stage import Outcome, Played, PlayedJob, play_all, uneven_counts
from benchmarks.engine.transports import TransportName
from benchmarks.report import json_text, today
from elasticflow import ElasticJob
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.runtime.process.logs import configure_logs

JOBS: dict[int, type[Sensitive]] = {4: OfFour, 8: OfEight, 16: OfSixteen}  # by virtual nodes
_TOLERANCE = 1e-4  # of weights of about one, after some hundred steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """All schedules run so, at_once of them concurrently."""

    at_once: int = 1
    transport: TransportName = TransportName.GLOO
    device: Device = Device.CPU


ONE_AT_A_TIME = Conditions()


async def prove(
    virtual_nodes: int,
    seeds: Sequence[int],
    conditions: Conditions = ONE_AT_A_TIME,
    *,
    is_uneven: bool = False,
    cpu_shares: Sequence[float] = (1.0,),
    is_sharded: bool = False,
) -> dict[str, Any]:
    """The row of one V. is_uneven: workers have unequal numbers of virtual nodes, others in each generation.
    cpu_shares: as in `Crew`. is_sharded: each worker holds a part of the optimizer's state."""

    def settings_of(seed: int) -> dict[str, Any]:
        return {"cpu_shares": cpu_shares, **({"counts_of": uneven_counts(virtual_nodes, seed)} if is_uneven else {})}

    spec = partial(spec_of, JOBS[virtual_nodes](), is_sharded=is_sharded, transport=conditions.transport)
    job = PlayedJob(name=f"v{virtual_nodes}", spec_of=spec, settings_of=settings_of)
    outcome = await play_all(job, seeds, at_once=conditions.at_once, device=conditions.device)
    return {
        "virtual_nodes": virtual_nodes,
        "uneven": is_uneven,
        "cpu_shares": list(cpu_shares),
        "sharded": is_sharded,
        "transport": conditions.transport.value,
        "device": conditions.device.value,
        **_numbers(outcome),
        "differences": [text for each in outcome.played for text in differences(each, outcome.expected)],
        "iterations_read_wrongly": reading_errors(outcome.expected),
    }


async def prove_gangs(gang: int, seeds: Sequence[int], conditions: Conditions = ONE_AT_A_TIME) -> dict[str, Any]:
    """The row of gangs of one size. Gangs join and leave, and any of their workers is killed or stopped."""
    job = Divided()
    job.gpus_per_replica = gang
    spec = partial(spec_of, job, transport=conditions.transport)
    played = PlayedJob(name=f"gangs-of-{gang}", spec_of=spec)
    outcome = await play_all(played, seeds, at_once=conditions.at_once, device=conditions.device)
    return {
        "gang": gang,
        "transport": conditions.transport.value,
        "device": conditions.device.value,
        **_numbers(outcome),
        "differences": [text for each in outcome.played for text in differences(each, outcome.expected)],
        "iterations_read_wrongly": [],
    }


async def prove_fast(seeds: Sequence[int], conditions: Conditions = ONE_AT_A_TIME) -> dict[str, Any]:
    """The row of the fast mode. The oldest worker is spared, because a restart from a checkpoint repeats steps with
    other rounding."""
    spec = partial(spec_of, Smooth(), transport=conditions.transport)
    job = PlayedJob(name="fast", spec_of=spec, spares_oldest=True)
    outcome = await play_all(job, seeds, at_once=conditions.at_once, device=conditions.device)
    return {
        "virtual_nodes": "fast",
        "transport": conditions.transport.value,
        "device": conditions.device.value,
        **_numbers(outcome),
        "differences": [text for each in outcome.played for text in fast_differences(each, outcome.expected)],
        "iterations_read_wrongly": reading_errors(outcome.expected),
        "farthest_apart": max(
            (farthest_apart(held, outcome.expected[i]) for each in outcome.played for i, held in each.held),
            default=0.0,
        ),
    }


def _numbers(outcome: Outcome) -> dict[str, Any]:
    played = outcome.played
    kinds = Counter(event.kind for each in played for event in each.events)
    return {
        "schedules": len(played),
        "events": dict(sorted(kinds.items())),
        "killed": sum(each.killed for each in played),
        "generations": sum(each.generations for each in played),
        "longest_iterations": max(outcome.expected, default=0) + 1,
        "states_compared": sum(len(each.held) for each in played),
        "unfinished": list(outcome.unfinished),
    }


def differences(played: Played, expected: dict[int, str]) -> list[str]:
    """A sentence for each state that differs from the undisturbed one."""
    iteration, final = played.final
    told = [(iteration, held) for iteration, held in played.held if expected[iteration] != held]
    wrong = [f"seed {played.seed}: iteration {iteration} begins with {held[:16]}" for iteration, held in told]
    if expected[iteration].split()[0] != final:
        wrong.append(f"seed {played.seed}: the checkpoint of iteration {iteration} is {final[:16]}")
    return wrong


def fast_differences(played: Played, expected: dict[int, str]) -> list[str]:
    """A sentence for each iteration in which workers differ in a bit, and for each state with wrong samples or with
    weights that are too far from the undisturbed ones."""
    wrong: list[str] = []
    for iteration in sorted({iteration for iteration, _ in played.held}):
        where = f"seed {played.seed}: iteration {iteration} begins with"
        states = {held for i, held in played.held if i == iteration}
        if len(states) > 1:
            wrong.append(f"{where} {len(states)} states")
        if any(times_seen(held) != times_seen(expected[iteration]) for held in states):
            wrong.append(f"{where} other samples seen")
        if max(farthest_apart(held, expected[iteration]) for held in states) > _TOLERANCE:
            wrong.append(f"{where} weights that rounding does not explain")
    return wrong


def farthest_apart(held: str, other: str) -> float:
    """The largest difference of a weight."""
    weights, others = (map(float, text.split()[1 + NUM_SAMPLES :]) for text in (held, other))
    return max(abs(one - other) for one, other in zip(weights, others, strict=True))


def times_seen(held: str) -> list[int]:
    """The times that each sample was seen, by the index of the sample, in steps that count."""
    return [int(times) for times in held.split()[1 : 1 + NUM_SAMPLES]]


def reading_errors(expected: dict[int, str]) -> list[int]:
    """Iterations before which some sample was not seen once an epoch."""
    wrong: list[int] = []
    for iteration, held in expected.items():
        epochs, rest = divmod(iteration * GLOBAL_BATCH_SIZE, NUM_SAMPLES)
        times = Counter(times_seen(held))
        if times != +Counter({epochs: NUM_SAMPLES - rest, epochs + 1: rest}):
            wrong.append(iteration)
    return wrong


def spec_of(
    job: ElasticJob,
    record: Path,
    *,
    step_s: float = 0.0,
    max_iterations: int = 10**9,
    is_sharded: bool = False,
    transport: TransportName = TransportName.GLOO,
) -> JobSpec:
    """record: folder in which each worker records its state."""
    job.set_hyperparameter(
        global_batch_size=GLOBAL_BATCH_SIZE,
        step_s=step_s,
        record=str(record),
        transport=transport.value,
        is_sharded=is_sharded,
    )
    job.shard_optimizer = is_sharded
    return job.term_condition(max_iterations=max_iterations).set_job_class("best_effort").spec()


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Run so many schedules for each number of virtual nodes.")] = 50,
    first: Annotated[int, typer.Option(min=0, help="Start with this seed; a failure names its seed.")] = 0,
    virtual_nodes: Annotated[list[int], typer.Option("--virtual-nodes", "-v")] = [*JOBS],  # noqa: B006
    fast: Annotated[int, typer.Option(min=0, help="Run so many schedules in the fast mode.")] = 10,
    uneven: Annotated[
        bool, typer.Option("--uneven", help="Give the workers unequal numbers of virtual nodes, in the bitwise mode.")
    ] = False,
    cpu_share: Annotated[
        list[float],
        typer.Option(min=0.01, max=1.0, help="Share of a core of a worker's slot; may be repeated, for slots in turn."),
    ] = [1.0],  # noqa: B006
    sharded: Annotated[
        bool,
        typer.Option("--sharded", help="Let each worker hold a part of the optimizer's state, in the bitwise mode."),
    ] = False,
    gang: Annotated[
        list[int], typer.Option(min=2, max=6, help="Run so many schedules for gangs of so many workers.")
    ] = [2],  # noqa: B006
    transport: Annotated[TransportName, typer.Option(help="What moves the workers' gradients.")] = TransportName.GLOO,
    device: Annotated[
        Device, typer.Option(help="Run the workers on CPU slots, or on GPUs that they share.")
    ] = Device.CPU,
    at_once: Annotated[int, typer.Option(min=1, help="Run so many schedules concurrently.")] = 2,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Run random schedules. Exit code 1 if any state differs, or a schedule does not finish."""
    configure_logs(level="error")
    tried = range(first, first + seeds)
    where = Conditions(at_once=at_once, transport=transport, device=device)
    rows = [
        asyncio.run(prove(v, tried, where, is_uneven=uneven, cpu_shares=cpu_share, is_sharded=sharded))
        for v in virtual_nodes
    ]
    rows += [asyncio.run(prove_gangs(size, tried, where)) for size in gang]
    if fast:
        rows.append(asyncio.run(prove_fast(range(first, first + fast), where)))
    result = {
        "date": today(),
        "torch": torch.__version__,
        "rows": rows,
    }
    print(json_text(result, out))
    wrong = ("unfinished", "differences", "iterations_read_wrongly")
    raise typer.Exit(int(any(row[name] for row in rows for name in wrong)))


if __name__ == "__main__":
    typer.run(main)
