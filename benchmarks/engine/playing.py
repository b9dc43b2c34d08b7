"""Random schedules of events for the workers of a job, and the player that runs them. A seed determines a schedule."""

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from benchmarks.engine.crew import Crew, Worker

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
    """after_s: since the end of the previous event. size: workers afterwards.

    hurt_s: time after the start of a switch at which one of its workers is killed, if the switch takes as long.
    """

    kind: Kind
    after_s: float
    size: int
    hurt_s: float | None


def schedule(seed: int, *, num_events: int = NUM_EVENTS, chances: Mapping[Kind, float] = CHANCES) -> tuple[Event, ...]:
    """The start, and num_events events."""
    rng = np.random.default_rng((seed, 0))
    kinds, weights = list(chances), np.array(list(chances.values()))
    size = int(rng.integers(1, MOST_WORKERS + 1))
    events = [Event(kind="start", after_s=0.0, size=size, hurt_s=None)]
    while len(events) <= num_events:
        kind = kinds[rng.choice(len(kinds), p=weights / weights.sum())]
        match kind:
            case "join" if size < MOST_WORKERS:
                size = int(rng.integers(size + 1, MOST_WORKERS + 1))
            case "leave" | "kill" if size > 1:
                size = int(rng.integers(1, size))
            case "move" | "pause":
                pass
            case "kill all" | "stop" | "suspend":
                size = int(rng.integers(1, MOST_WORKERS + 1))
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
        crew, holders = self._crew, self._shuffled(self._crew.holders)
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
        num_new = int(self._rng.integers(1, event.size + 1)) if event.kind == "move" else 0
        hurting = asyncio.create_task(self._hurt(event.hurt_s))
        while True:
            await crew.shrink_to_survivors()
            if crew.holders:
                staying = sorted(self._shuffled(crew.holders), key=lambda w: w not in self._spared)
                staying = staying[: max(event.size - num_new, len(self._spared))]
                await crew.switch(self._shuffled((*staying, *[None] * (event.size - len(staying)))))
            else:
                await crew.start(event.size)
            await hurting
            if len(crew.holders) == event.size == len(crew.members):
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

    def _shuffled(self, items: Sequence[T]) -> list[T]:
        return [items[i] for i in self._rng.permutation(len(items))]
