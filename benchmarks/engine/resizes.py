"""Changes of workers while the others train, beside what a checkpoint and a restart cost in the same run.

Each resize is taken 2 -> 4 -> 2 workers, as an executor asks for it. stop_s: from the step boundary at which all were
ready to the first step of the new generation, the only time in which nobody trains. restart_s: the same change
through a checkpoint, from the wish to the first step, with processes forked from a warm server (a torchrun restart
loads torch as well, about two seconds more). crash_s: from SIGKILL of one of two workers to the end of the first step
with its replacement.
"""

import time
from dataclasses import replace
from typing import Any

from benchmarks.engine.elastic import Engine
from benchmarks.engine.models import Bitwise
from services.executor.launcher import Exited, WorkerHandle
from shared.messages.resize_timeline import ResizeTimeline
from shared.messages.worker_channel import (
    Assignment,
    ChangeMembership,
    Interrupted,
    Progressed,
    Started,
    StopAtBoundary,
    Switched,
)

_STEADY_REPORTS = 2  # of progress, between two changes


async def measure_resizes(engine: Engine, *, million_parameters: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each direction: medians over the rounds."""
    job = Resized(engine, million_parameters)
    workers = await job.start(2, generation=1)
    grown: list[ResizeTimeline] = []
    shrunk: list[ResizeTimeline] = []
    crashes_s: list[float] = []
    for _ in range(rounds):
        workers, timeline = await job.go_over(workers, [0, 1, None, None])
        grown.append(timeline)
        workers, timeline = await job.go_over(workers, [0, 1])
        shrunk.append(timeline)
        workers, crash_s = await job.crash(workers)
        crashes_s.append(crash_s)
    restart_s = await job.restart(workers, 4)
    return [
        _row(million_parameters, "2 -> 4", grown) | {"restart_s": restart_s},
        _row(million_parameters, "4 -> 2", shrunk) | {"crash_s": sorted(crashes_s)[len(crashes_s) // 2]},
    ]


def _row(million_parameters: int, change: str, timelines: list[ResizeTimeline]) -> dict[str, Any]:
    def median(name: str) -> float:
        return sorted(getattr(timeline, name) for timeline in timelines)[len(timelines) // 2]

    return {
        "million_parameters": million_parameters,
        "change": change,
        "stop_s": median("stop_s"),
        "worst_stop_s": max(timeline.stop_s for timeline in timelines),
        "prepare_s": median("prepare_s"),
        "bytes_moved": timelines[0].bytes_moved,
    }


class Resized:
    """One job, and its workers as an executor sees them."""

    def __init__(self, engine: Engine, million_parameters: int) -> None:
        self._engine = engine
        self._assignment = engine.assignment(Bitwise, million_parameters)
        self._generation = 0
        self.went_over_s = 0.0  # when the last change was heard to be done

    async def start(self, num_workers: int, *, generation: int) -> list[WorkerHandle]:
        """All new; returns when they have trained for a while."""
        self._generation = generation
        workers = [await self._launch(rank, num_workers) for rank in range(num_workers)]
        await self._engine.heard(Progressed, workers[0], meeting=workers)
        return workers

    async def go_over(
        self, before: list[WorkerHandle], members: list[int | None], *, lost: tuple[int, ...] = ()
    ) -> tuple[list[WorkerHandle], ResizeTimeline]:
        """Rank r is rank members[r] of those before, or new where that is None."""
        self._generation += 1
        leaving = [w for rank, w in enumerate(before) if rank not in (*members, *lost)]
        size = len(members) + len(leaving)
        workers = [
            await self._launch(place, len(members), size) if rank is None else before[rank]
            for place, rank in enumerate(members)
        ]
        for place, worker in enumerate((*workers, *leaving)):
            if worker in before:
                change = ChangeMembership(
                    generation=self._generation, place=place, world_size=len(members), meeting_size=size
                )
                worker.send(change)
        said = await self._engine.heard(Switched, workers[0], meeting=[*workers, *leaving])
        went_over_s = self._engine.heard_at_s[Switched]
        for _ in range(_STEADY_REPORTS):
            await self._engine.heard(Progressed, workers[0])
        self.went_over_s = went_over_s
        return workers, said.resize

    async def crash(self, workers: list[WorkerHandle]) -> tuple[list[WorkerHandle], float]:
        """Kill the last one; how long until its replacement has taken part in a step."""
        began_s = time.monotonic()
        workers[-1].kill()
        await self._engine.heard(Interrupted, workers[0])
        last = len(workers) - 1
        workers, _ = await self.go_over(workers, [*range(last), None], lost=(last,))
        return workers, self.went_over_s - began_s

    async def restart(self, workers: list[WorkerHandle], num_workers: int) -> float:
        """Through a checkpoint: from the wish to the first step that is reported."""
        began_s = time.monotonic()
        for worker in workers:
            worker.send(StopAtBoundary())
        for worker in workers:
            await self._engine.heard(Exited, worker)
        workers = await self.start(num_workers, generation=self._generation + 1)
        took_s = self._engine.heard_at_s[Started] - began_s
        for worker in workers:
            worker.kill()
        return took_s

    async def _launch(self, rank: int, world_size: int, meeting_size: int = 0) -> WorkerHandle:
        assignment: Assignment = replace(
            self._assignment,
            generation=self._generation,
            rank=rank,
            world_size=world_size,
            meeting_size=meeting_size,
        )
        return await self._engine.launcher.launch(assignment)
