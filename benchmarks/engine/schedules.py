"""`python -m benchmarks.engine.schedules`: do joins, leaves, kills and stops leave a trace? 50 schedules for each V.

A schedule follows from its seed: workers come, go, change ranks, are killed at any moment, also while a change is being
made, are stopped by a signal, all die, are suspended and come back. What every worker holds at the beginning of every
step, weights, optimizer, buffers and how often each sample was seen, is compared with the run of one worker that
nobody disturbs.
"""

import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.engine.crew import Crew
from benchmarks.engine.playing import Event, Player, schedule
from benchmarks.engine.sensitive import (
    GLOBAL_BATCH_SIZE,
    NUM_SAMPLES,
    OfEight,
    OfFour,
    OfSixteen,
    Sensitive,
    digest,
)
from services.executor.launcher import Launcher, WorkerEvent, WorkerHandle
from services.executor.worker.checkpoint import CheckpointStore
from shared.messages.job import JobSpec
from shared.runtime.logs import configure_logs

JOBS: dict[int, type[Sensitive]] = {4: OfFour, 8: OfEight, 16: OfSixteen}  # by virtual nodes
STEP_S = 0.02
_PATIENCE_S = 170.0  # for a schedule, which takes some seconds


class Stage:
    """Where schedules are played: one launcher for all crews."""

    def __init__(self, folder: Path) -> None:
        self.launcher = Launcher(data_dir=folder, node_id="schedules", on_event=self._note)
        self._folder = folder
        self._crews: dict[str, Crew] = {}

    def crew(self, job_id: str, spec: JobSpec, **settings: Any) -> Crew:
        crew = Crew(job_id=job_id, spec=spec, folder=self._folder, launcher=self.launcher, **settings)
        self._crews[job_id] = crew
        return crew

    def _note(self, handle: WorkerHandle, event: WorkerEvent) -> None:
        self._crews[handle.assignment.job_id].note(handle, event)


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    with tempfile.TemporaryDirectory() as folder:
        ready = Stage(Path(folder))
        await ready.launcher.start()
        try:
            yield ready
        finally:
            await ready.launcher.close()


class Unfinished(Exception):
    """A schedule that did not come to its end: what was waited for, and the schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What a schedule has left. held: what a worker said it held at the beginning of an iteration, one for each that it
    took part in. final: the same of the last checkpoint, less what was seen."""

    seed: int
    events: tuple[Event, ...]
    killed: int
    generations: int
    held: tuple[tuple[int, str], ...]
    final: tuple[int, str]


async def play(stage: Stage, virtual_nodes: int, seed: int, folder: Path) -> Played:
    """folder: for what its workers tell, empty."""
    events = schedule(seed)
    crew = stage.crew(f"v{virtual_nodes}-seed{seed}", spec_of(virtual_nodes, folder, step_s=STEP_S))
    player = Player(crew, seed)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await player.play(events)
    except (AssertionError, TimeoutError) as error:
        raise Unfinished(f"{crew.job_id}: {error}; {events}") from error
    finally:
        for worker in crew.processes:
            worker.handle.kill()
    state = CheckpointStore(crew.checkpoint_dir, generation=1 << 30).newest()
    assert state is not None
    return Played(
        seed=seed,
        events=events,
        killed=player.killed,
        generations=crew.generation,
        held=tuple(_held(folder)),
        final=(state["iteration"], digest([state["model"], state["optimizer"]])),
    )


async def undisturbed(stage: Stage, virtual_nodes: int, num_iterations: int, folder: Path) -> dict[int, str]:
    """What one worker holds at the beginning of each iteration, whom nobody disturbs."""
    spec = spec_of(virtual_nodes, folder, max_iterations=num_iterations)
    crew = stage.crew(f"v{virtual_nodes}-undisturbed", spec, checkpoint_every_s=1e6)
    await crew.start(1)
    await crew.until(lambda: not crew.processes, "it has finished")
    return dict(_held(folder))


def differences(played: Played, expected: dict[int, str]) -> list[str]:
    """A sentence for each state that is not the undisturbed one's."""
    iteration, final = played.final
    told = [(iteration, held) for iteration, held in played.held if expected[iteration] != held]
    wrong = [f"seed {played.seed}: iteration {iteration} begins with {held[:16]}" for iteration, held in told]
    if expected[iteration].split()[0] != final:
        wrong.append(f"seed {played.seed}: the checkpoint of iteration {iteration} is {final[:16]}")
    return wrong


def reading_errors(expected: dict[int, str]) -> list[int]:
    """Iterations before which some sample was not seen once an epoch."""
    wrong: list[int] = []
    for iteration, held in expected.items():
        epochs, rest = divmod(iteration * GLOBAL_BATCH_SIZE, NUM_SAMPLES)
        times = Counter(map(int, held.split()[1:]))
        if times != +Counter({epochs: NUM_SAMPLES - rest, epochs + 1: rest}):
            wrong.append(iteration)
    return wrong


def spec_of(virtual_nodes: int, record: Path, *, step_s: float = 0.0, max_iterations: int = 10**9) -> JobSpec:
    """record: where each worker says what it holds."""
    job = JOBS[virtual_nodes]().set_hyperparameter(
        global_batch_size=GLOBAL_BATCH_SIZE, step_s=step_s, record=str(record)
    )
    return job.term_condition(max_iterations=max_iterations).set_job_class("best_effort").spec()


def _held(folder: Path) -> list[tuple[int, str]]:
    """A line may be half written where its writer was killed."""
    lines = [line for file in folder.iterdir() for line in file.read_text().splitlines(keepends=True)]
    whole = [line.rstrip().split(maxsplit=1) for line in lines if line.endswith("\n")]
    return [(int(iteration), held) for iteration, held in whole]


async def prove(virtual_nodes: int, seeds: Sequence[int], *, at_once: int = 1) -> dict[str, Any]:
    """The row of one V."""
    with tempfile.TemporaryDirectory() as record:
        folders = {name: Path(record) / name for name in ("undisturbed", *map(str, seeds))}
        for folder in folders.values():
            folder.mkdir()
        turn = asyncio.Semaphore(at_once)

        async def one(seed: int) -> Played | str:
            async with turn:
                try:
                    return await play(there, virtual_nodes, seed, folders[str(seed)])
                except Unfinished as error:
                    return str(error)

        async with stage() as there:
            outcomes = await asyncio.gather(*map(one, seeds))
            played = [outcome for outcome in outcomes if isinstance(outcome, Played)]
            longest = max(iteration for each in played for iteration, _ in (*each.held, each.final)) + 1
            expected = await undisturbed(there, virtual_nodes, longest, folders["undisturbed"])
    kinds = Counter(event.kind for each in played for event in each.events)
    return {
        "virtual_nodes": virtual_nodes,
        "schedules": len(played),
        "events": dict(sorted(kinds.items())),
        "killed": sum(each.killed for each in played),
        "generations": sum(each.generations for each in played),
        "longest_iterations": longest,
        "states_compared": sum(len(each.held) for each in played),
        "unfinished": [outcome for outcome in outcomes if isinstance(outcome, str)],
        "differences": [text for each in played for text in differences(each, expected)],
        "iterations_read_wrongly": reading_errors(expected),
    }


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Schedules for each number of virtual nodes.")] = 50,
    first: Annotated[int, typer.Option(min=0, help="The first seed: a failure names its own.")] = 0,
    virtual_nodes: Annotated[list[int], typer.Option("--virtual-nodes", "-v")] = [*JOBS],  # noqa: B006
    at_once: Annotated[int, typer.Option(min=1, help="Schedules played at the same time.")] = 2,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Exit code 1 if any state differs, or a schedule does not come to its end."""
    configure_logs(level="error")
    rows = [asyncio.run(prove(v, range(first, first + seeds), at_once=at_once)) for v in virtual_nodes]
    result = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "torch": torch.__version__,
        "backend": "gloo",
        "rows": rows,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if out:
        out.write_text(text + "\n")
    wrong = ("unfinished", "differences", "iterations_read_wrongly")
    raise typer.Exit(int(any(row[name] for row in rows for name in wrong)))


if __name__ == "__main__":
    typer.run(main)
