"""Runs schedules, each on workers of its own, and collects the recorded states."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine.crew import Crew
from benchmarks.engine.device import Device
from benchmarks.engine.playing import Event, Player, schedule
from benchmarks.engine.sensitive import digest
from elasticflow.services.executor.processes.launcher import Launcher, WorkerEvent, WorkerHandle
from elasticflow.shared.messages.job_spec import JobSpec

STEP_S = 0.02
_PATIENCE_S = 170.0  # for a schedule, which takes some seconds


class Stage:
    """One launcher for all crews."""

    def __init__(self, folder: Path, device: Device = Device.CPU) -> None:
        self._device = device
        self.launcher = Launcher(data_dir=folder, node_id="schedules", on_event=self._note)
        self._folder = folder
        self._crews: dict[str, Crew] = {}

    def crew(self, job_id: str, spec: JobSpec, **settings: Any) -> Crew:
        crew = Crew(
            job_id=job_id, spec=spec, folder=self._folder, launcher=self.launcher, device=self._device, **settings
        )
        self._crews[job_id] = crew
        return crew

    def _note(self, handle: WorkerHandle, event: WorkerEvent) -> None:
        self._crews[handle.assignment.job_id].note(handle, event)


@asynccontextmanager
async def stage(device: Device = Device.CPU) -> AsyncIterator[Stage]:
    with tempfile.TemporaryDirectory() as folder:
        ready = Stage(Path(folder), device)
        await ready.launcher.start()
        try:
            yield ready
        finally:
            await ready.launcher.close()


class Unfinished(Exception):
    """An unfinished schedule: what was awaited, and the schedule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The result of a schedule. held: a worker's recorded state at the beginning of an iteration, one for each in which
    it took part. final: the same of the last checkpoint, without the sample counts."""

    seed: int
    events: tuple[Event, ...]
    killed: int
    generations: int
    held: tuple[tuple[int, str], ...]
    final: tuple[int, str]


SpecOf = Callable[..., JobSpec]
"""(folder, *, step_s, max_iterations): of a job whose workers say there what they hold at each step's beginning."""

SettingsOf = Callable[[int], Mapping[str, Any]]
"""Of the crew of a schedule, by its seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedJob:
    """The job of all schedules. name: without their seeds. spares_oldest: as in `Player`."""

    name: str
    spec_of: SpecOf
    settings_of: SettingsOf = lambda _: {}
    spares_oldest: bool = False


async def play(stage: Stage, job: PlayedJob, seed: int, folder: Path) -> Played:
    """folder: for the workers' records, empty."""
    events = schedule(seed)
    crew = stage.crew(f"{job.name}-seed{seed}", job.spec_of(folder, step_s=STEP_S), **job.settings_of(seed))
    player = Player(crew, seed, spares_oldest=job.spares_oldest)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await player.play(events)
    except (AssertionError, TimeoutError) as error:
        raise Unfinished(f"{crew.job_id}: {error}; {events}") from error
    finally:
        for worker in crew.processes:
            worker.handle.kill()
    state = crew.newest_state()
    recorded = [state["model"]] if crew.spec.shard_optimizer else [state["model"], state["optimizer"]]
    return Played(
        seed=seed,
        events=events,
        killed=player.killed,
        generations=crew.generation,
        held=tuple(_held(folder)),
        final=(state["iteration"], digest(recorded)),
    )


async def undisturbed(stage: Stage, job: PlayedJob, num_iterations: int, folder: Path) -> dict[int, str]:
    """States of one undisturbed worker, at the beginning of each iteration."""
    spec = job.spec_of(folder, max_iterations=num_iterations)
    crew = stage.crew(f"{job.name}-undisturbed", spec, checkpoint_every_s=1e6)
    await crew.start(1)
    await crew.until(lambda: not crew.processes, "it has finished")
    return dict(_held(folder))


def _held(folder: Path) -> list[tuple[int, str]]:
    """A killed writer may have left an incomplete line."""
    lines = [line for file in folder.iterdir() for line in file.read_text().splitlines(keepends=True)]
    whole = [line.rstrip().split(maxsplit=1) for line in lines if line.endswith("\n")]
    return [(int(iteration), held) for iteration, held in whole]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of several schedules. unfinished: a sentence for each that did not finish. expected: states of one
    undisturbed worker, at the beginning of each iteration."""

    played: tuple[Played, ...]
    unfinished: tuple[str, ...]
    expected: dict[int, str]


async def play_all(job: PlayedJob, seeds: Sequence[int], *, at_once: int, device: Device = Device.CPU) -> Outcome:
    """Including the undisturbed run."""
    with tempfile.TemporaryDirectory() as record:
        folders = {key: Path(record) / key for key in ("undisturbed", *map(str, seeds))}
        for folder in folders.values():
            folder.mkdir()
        turn = asyncio.Semaphore(at_once)

        async def one(seed: int) -> Played | str:
            async with turn:
                try:
                    return await play(there, job, seed, folders[str(seed)])
                except Unfinished as error:
                    return str(error)

        async with stage(device) as there:
            outcomes = await asyncio.gather(*map(one, seeds))
            played = tuple(outcome for outcome in outcomes if isinstance(outcome, Played))
            longest = max((iteration for each in played for iteration, _ in (*each.held, each.final)), default=0) + 1
            expected = await undisturbed(there, job, longest, folders["undisturbed"])
    unfinished = tuple(outcome for outcome in outcomes if isinstance(outcome, str))
    return Outcome(played=played, unfinished=unfinished, expected=expected)
