"""Random schedules of events for the workers of jobs. A seed determines one; a stage plays it and keeps the states."""

import asyncio
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from benchmarks.engine.crew import Crew, Worker, launching
from benchmarks.engine.parts import Device
from benchmarks.engine.sensitive import digest
from elasticflow.services.executor.processes.launcher import Launcher, WorkerEvent, WorkerHandle
from elasticflow.shared.messages.job_spec import JobSpec

# --- schedules, and the player that runs them ----------------------------------------------------------


MOST_WORKERS = 6
NUM_EVENTS = 10

Kind = Literal["start", "join", "leave", "move", "kill", "kill all", "stop", "pause", "suspend"]
CHANCES: Mapping[Kind, float] = {
    "join": 0.2,
    "leave": 0.15,
    "move": 0.15,
    "kill": 0.2,
    "kill all": 0.05,
    "stop": 0.05,  # SIGSTOP, until the launcher notices
    "pause": 0.1,  # SIGSTOP, and SIGCONT before that
    "suspend": 0.1,
}
_HURT = 0.3  # probability
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """after_s: since the end of the previous event. size: workers afterwards, or gangs.

    hurt_s: time after the start of a switch at which one of its workers is killed, if the switch takes as long.
    """

    kind: Kind
    after_s: float
    size: int
    hurt_s: float | None


def schedule(
    seed: int, *, num_events: int = NUM_EVENTS, chances: Mapping[Kind, float] = CHANCES, most: int = MOST_WORKERS
) -> tuple[Event, ...]:
    """The start, and num_events events. most: workers, or gangs."""
    rng = np.random.default_rng((seed, 0))
    kinds, weights = list(chances), np.array(list(chances.values()))
    size = int(rng.integers(1, most + 1))
    events = [Event(kind="start", after_s=0.0, size=size, hurt_s=None)]
    while len(events) <= num_events:
        kind = kinds[rng.choice(len(kinds), p=weights / weights.sum())]
        match kind:
            case "join" if size < most:
                size = int(rng.integers(size + 1, most + 1))
            case "leave" | "kill" if size > 1:
                size = int(rng.integers(1, size))
            case "move" | "pause":
                pass
            case "kill all" | "stop" | "suspend":
                size = int(rng.integers(1, most + 1))
            case _:
                continue
        hurt_s = float(rng.uniform(0.0, 0.5)) if rng.random() < _HURT else None
        events.append(Event(kind=kind, after_s=float(rng.uniform(0.0, 0.2)), size=size, hurt_s=hurt_s))
    return tuple(events)


def uneven_counts(count: int, seed: int) -> Callable[[int], tuple[int, ...]]:
    """Random numbers of `count` virtual nodes for each new generation of a schedule, by its size; some may be zero."""
    rng = np.random.default_rng((seed, 2))
    return lambda size: tuple(rng.multinomial(count, rng.dirichlet(np.ones(size))).tolist())


class Player:
    """Plays events on a crew. spares_oldest: the oldest worker stays and is never killed, though it may be paused.

    killed: number of processes that the player killed.
    """

    def __init__(self, crew: Crew, seed: int, *, spares_oldest: bool = False) -> None:
        self.killed = 0
        self._crew = crew
        self._rng = np.random.default_rng((seed, 1))
        self._spares_oldest = spares_oldest

    async def play(self, events: Sequence[Event]) -> None:
        """Play all events, up to the checkpoint of the last step."""
        for event in events:
            await self.happen(event)
        assert await self._crew.suspend(), "all members stop"

    async def happen(self, event: Event) -> None:
        """Return when as many workers train as the event requires."""
        await asyncio.sleep(event.after_s)
        await self._strike(event)
        if event.kind != "pause":
            await self._reach(event)

    async def _strike(self, event: Event) -> None:
        """What happens to the training workers."""
        crew, gangs = self._crew, self._shuffled(self._crew.gangs)
        holders = [self._one_of(gang) for gang in gangs]
        spared = self._spared
        victims = [worker for worker in holders if worker not in spared]
        match event.kind:
            case "kill":
                await self._kill(victims[: max(1, len(holders) - event.size)])
            case "kill all":
                await self._kill(victims)
            case "stop":
                for worker in victims[:1]:
                    worker.signal(signal.SIGSTOP)
                await crew.until(lambda: all(w.exited for w in victims[:1]), "who is stopped is ended")
            case "pause":
                holders[0].signal(signal.SIGSTOP)
                await asyncio.sleep(float(self._rng.uniform(0.0, 0.3)))
                holders[0].signal(signal.SIGCONT)
            case "suspend":
                await crew.suspend()
            case "start" | "join" | "leave" | "move":
                pass

    @property
    def _spared(self) -> tuple[Worker, ...]:
        return self._crew.processes[:1] if self._spares_oldest else ()

    async def _reach(self, event: Event) -> None:
        """Reach a generation of the event's size, despite losses."""
        crew = self._crew
        num_workers = event.size * crew.gang_size
        num_new = int(self._rng.integers(1, event.size + 1)) if event.kind == "move" else 0
        hurting = asyncio.create_task(self._hurt(event.hurt_s))
        while True:
            await crew.shrink_to_survivors()
            if crew.holders:
                staying = sorted(self._shuffled(crew.gangs), key=lambda gang: gang[0] not in self._spared)
                staying = staying[: max(event.size - num_new, len(self._spared))]
                new = [(None,) * crew.gang_size] * (event.size - len(staying))
                await crew.switch([*chain(*self._shuffled((*staying, *new)))])
            else:
                await crew.start(num_workers)
            await hurting
            if len(crew.holders) == num_workers == len(crew.members):
                return
            num_new = 0

    async def _hurt(self, after_s: float | None) -> None:
        if after_s is not None:
            await asyncio.sleep(after_s)
            spared = self._spared
            await self._kill(self._shuffled([w for w in self._crew.processes if w not in spared])[:1])

    async def _kill(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            self.killed += worker.exited is None
            worker.handle.kill()
        await self._crew.until(lambda: all(w.exited for w in workers), "who is killed is gone")

    def _one_of(self, gang: Sequence[Worker]) -> Worker:
        return gang[0] if len(gang) == 1 else gang[int(self._rng.integers(len(gang)))]

    def _shuffled(self, items: Sequence[T]) -> list[T]:
        return [items[i] for i in self._rng.permutation(len(items))]


# --- the stage: a launcher for all crews ---------------------------------------------------------------


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


def stage(device: Device = Device.CPU) -> AbstractAsyncContextManager[Stage]:
    return launching(Stage, device)


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
    crew = stage.crew(f"{job.name}-seed{seed}", job.spec_of(folder, step_s=STEP_S), **job.settings_of(seed))
    events = schedule(seed, most=max(MOST_WORKERS // crew.gang_size, 2))
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
    """States of one undisturbed worker, or gang, at the beginning of each iteration."""
    spec = job.spec_of(folder, max_iterations=num_iterations)
    crew = stage.crew(f"{job.name}-undisturbed", spec, checkpoint_every_s=1e6)
    await crew.start(crew.gang_size)
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
