"""The workers of one job under a launcher, as an executor has them, but without a ledger: changed and hurt by hand.

Generations follow each other as they do in a pool: whoever has the state of the job goes over to the next one, or,
where nobody has it, all begin anew from the newest checkpoint. What comes of a change is told; what to do then is the
caller's.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.executor.launcher import Exited, Launcher, WorkerEvent, WorkerHandle
from shared.messages.from_worker import (
    Checkpointed,
    ExitCode,
    Failed,
    Finished,
    Interrupted,
    Progressed,
    RendezvousListening,
    Started,
    Switched,
)
from shared.messages.job import JobSpec
from shared.messages.resize_timeline import ResizeTimeline
from shared.messages.to_worker import Assignment, ChangeMembership, JoinRendezvous, PeersLost, StopAtBoundary

PATIENCE_S = 60.0  # for what must come; far above what it takes
_SETTLE_S = 1.0  # after a loss: others may have gone over or left already, and their word is on its way


@dataclass(eq=False)
class Worker:
    """One process. generation: as whose worker it trains, 0 before it does. iteration: steps done, as last told."""

    handle: WorkerHandle
    generation: int = 0
    rank: int = 0
    iteration: int = 0
    interrupted: bool = False
    exited: Exited | None = None

    @property
    def has_state(self) -> bool:
        return self.generation > 0 and self.exited is None

    def signal(self, number: signal.Signals) -> None:
        """To this process alone, if it still lives."""
        if self.exited is None:
            os.kill(self.handle.pid, number)


@dataclass(frozen=True, slots=True)
class _Change:
    """To a generation. by_place: all who meet, its `size` members first."""

    generation: int
    size: int
    by_place: tuple[Worker, ...]

    @property
    def members(self) -> tuple[Worker, ...]:
        return self.by_place[: self.size]

    @property
    def is_made(self) -> bool:
        leavers = self.by_place[self.size :]
        return all(w.generation == self.generation and w.has_state for w in self.members) and all(
            w.exited is not None for w in leavers
        )

    @property
    def is_broken(self) -> bool:
        """Somebody is gone who was to stay, or was killed before it left."""
        return any(w.exited is not None for w in self.members) or any(
            w.exited is not None and w.exited.code != ExitCode.DONE for w in self.by_place[self.size :]
        )


@dataclass(kw_only=True)
class Crew:
    """One job's. members: by rank in the newest generation, those who are gone included until the next change.
    timelines: of all changes without a stop, as told by rank 0 of the new generation."""

    job_id: str
    spec: JobSpec
    folder: Path
    launcher: Launcher
    checkpoint_every_s: float = 0.5
    members: tuple[Worker, ...] = ()
    timelines: list[ResizeTimeline] = field(default_factory=list[ResizeTimeline])
    finished: Finished | None = None
    failure: str = ""
    generation: int = 0  # the newest
    checkpointed: int = 0  # iteration of the newest checkpoint that was told of
    _workers: dict[int, Worker] = field(default_factory=dict[int, Worker])  # by process id
    _change: _Change | None = None
    _is_broken: bool = False  # the last one came to nothing
    _address: str = ""  # where place 0 of it listens
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def checkpoint_dir(self) -> Path:
        return self.folder / "checkpoints" / self.job_id

    @property
    def holders(self) -> tuple[Worker, ...]:
        """Members who live and have the state of the job, by rank."""
        return tuple(worker for worker in self.members if worker.has_state)

    @property
    def processes(self) -> tuple[Worker, ...]:
        """All that live."""
        return tuple(worker for worker in self._workers.values() if worker.exited is None)

    async def start(self, size: int) -> bool:
        """All new, from the newest checkpoint or from nothing. Whether all began."""
        return await self._go_over((None,) * size, ())

    async def go_over(self, members: Sequence[Worker | None]) -> bool:
        """To a generation of these, by rank; None: a newcomer. Other holders of the state leave. Whether all did: if
        not, somebody is lost, and whoever has the state waits or trains on, or is to `regroup`."""
        return await self._go_over(members, tuple(w for w in self.holders if w not in members))

    async def regroup(self) -> None:
        """Where members are gone, the others go on without them, however many live on."""
        while self.holders and any(
            worker.exited is not None or worker.interrupted for worker in self.members
        ):
            await self._go_over(self.holders, ())

    async def suspend(self) -> bool:
        """Stop at a step boundary; the state is on the disk then. Whether all were there to do so."""
        whole = len(self.holders) == len(self.members)
        for worker in self.holders:
            worker.handle.send(StopAtBoundary())
        await self.until(lambda: not self.processes, "all have stopped")
        return whole and all(w.exited is not None and w.exited.code == ExitCode.DONE for w in self.members)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Raises AssertionError if it does not come, or a worker says that the job has failed."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds():
                    assert not self.failure, f"{self.job_id}: {self.failure}"
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{self.job_id}: it never came that {what}: {self._in_words()}") from None

    def note(self, handle: WorkerHandle, event: WorkerEvent) -> None:
        """From the launcher, whatever a worker of this job says."""
        worker = self._workers.get(handle.pid)
        if worker is None or worker.handle is not handle:  # it spoke before `launch` returned
            worker = self._workers[handle.pid] = Worker(handle)
        match event:
            case RendezvousListening(generation=generation, port=port):
                if generation == self.generation:
                    self._address = f"127.0.0.1:{port}"
                    self._pass_on_rendezvous()
            case Started(iteration=iteration):
                worker.generation, worker.rank = handle.assignment.generation, handle.assignment.rank
                worker.iteration = iteration
            case Switched(generation=generation, rank=rank, iteration=iteration, resize=resize):
                worker.generation, worker.rank, worker.iteration = generation, rank, iteration
                worker.interrupted = False
                if rank == 0:
                    self.timelines.append(resize)
            case Interrupted(iteration=iteration):
                worker.interrupted, worker.iteration = True, iteration
            case Progressed(iteration=iteration):
                worker.iteration = iteration
            case Checkpointed(iteration=iteration):
                self.checkpointed = max(self.checkpointed, iteration)
            case Finished():
                self.finished = event
            case Failed(error=error):
                self.failure = error
            case Exited():
                worker.exited = event
                del self._workers[handle.pid]
            case _:
                pass
        self._changed.set()

    async def _go_over(self, members: Sequence[Worker | None], leaving: tuple[Worker, ...]) -> bool:
        if self._is_broken or any(
            not worker.has_state for worker in self.members
        ):  # as the ledger would tell
            for worker in self.holders:
                worker.handle.send(PeersLost(generation=self.generation))
        self.generation, self._address = self.generation + 1, ""
        generation, size = self.generation, len(members)
        some_have_state = bool(leaving) or any(members)
        meeting_size = size + len(leaving) if some_have_state else 0
        for place, worker in enumerate((*members, *leaving)):
            if worker is not None:
                worker.handle.send(
                    ChangeMembership(
                        generation=generation, place=place, world_size=size, meeting_size=meeting_size
                    )
                )
        newcomers = {
            rank: await self._launch(generation, rank, size, meeting_size)
            for rank, worker in enumerate(members)
            if worker is None
        }
        there = [worker or newcomers[rank] for rank, worker in enumerate(members)]
        before, change = self.holders, _Change(generation, size, (*there, *leaving))
        self._change = change
        self._pass_on_rendezvous()
        await self.until(
            lambda: change.is_made or change.is_broken or self.finished is not None,
            f"generation {generation} trains",
        )
        if change.is_broken:
            await asyncio.sleep(_SETTLE_S)
        made, self._change, self._is_broken = change.is_made, None, not change.is_made
        if not made:
            await self._give_up(list(newcomers.values()))
        self.members = (
            change.members if made else tuple(w for w in (*before, *newcomers.values()) if w.has_state)
        )
        return made

    async def _give_up(self, newcomers: Sequence[Worker]) -> None:
        """Newcomers that have not got the state do not get it any more."""
        useless = [worker for worker in newcomers if not worker.has_state]
        for worker in useless:
            worker.handle.kill()
        await self.until(
            lambda: all(worker.exited is not None for worker in useless), "useless newcomers are gone"
        )

    async def _launch(self, generation: int, rank: int, world_size: int, meeting_size: int) -> Worker:
        assignment = Assignment(
            job_id=self.job_id,
            generation=generation,
            rank=rank,
            world_size=world_size,
            meeting_size=meeting_size,
            spec=self.spec,
            checkpoint_dir=str(self.checkpoint_dir),
            checkpoint_every_s=self.checkpoint_every_s,
            gpu_index=rank,
        )
        handle = await self.launcher.launch(assignment)
        return self._workers.setdefault(handle.pid, Worker(handle))

    def _pass_on_rendezvous(self) -> None:
        """Place 0 may listen before the last one is launched."""
        if not self._address or self._change is None:
            return
        for worker in self._change.by_place[1:]:
            worker.handle.send(JoinRendezvous(generation=self._change.generation, address=self._address))

    def _in_words(self) -> str:
        return "; ".join(
            f"{w.handle.pid} g{w.generation}-r{w.rank} at {w.iteration}{' interrupted' if w.interrupted else ''}"
            for w in (*self.members, *self.processes)
        )
