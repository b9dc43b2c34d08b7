"""Real workers under a launcher, as an executor has them, but without a ledger; the caller controls them.

An `Engine` is one node, and its caller awaits each event. A `Crew` runs the workers of one job. Generations follow each
other as in a pool: workers that have the state of the job switch to the next one; if none has, all start anew from the
newest checkpoint. A method returns whether it succeeded, and the caller decides what to do next.
"""

import asyncio
import os
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from benchmarks.engine.models import Trained
from benchmarks.engine.parts import Device, device_fields
from elasticflow.services.executor.processes.launcher import Exited, Launcher, WorkerEvent, WorkerHandle
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.measurements import ResizeTimeline
from elasticflow.shared.messages.worker_protocol.from_worker import (
    CheckpointWritten,
    ExitCode,
    Failed,
    Finished,
    Interrupted,
    Progressed,
    RendezvousListening,
    Started,
    Switched,
)
from elasticflow.shared.messages.worker_protocol.to_worker import (
    Assignment,
    GenerationPlan,
    JoinRendezvous,
    PeersLost,
    PrepareSwitch,
    StopAtBoundary,
)

# --- one node, of which each event is awaited ----------------------------------------------------------


_EVENT_TIMEOUT_S = 300.0
T = TypeVar("T")


class Engine:
    """One node; one job at a time. received_at_s: time of the last event of each kind."""

    def __init__(self, data_dir: Path, device: Device = Device.CPU) -> None:
        self.device = device
        self.launcher = Launcher(data_dir=data_dir, node_id="benchmark", on_event=self._note)
        self.received_at_s: dict[type, float] = {}
        self._data_dir = data_dir
        self._unheard: defaultdict[WorkerHandle, list[WorkerEvent]] = defaultdict(list)
        self._changed = asyncio.Event()
        self._num_jobs = 0

    def assignment(self, job: type[Trained], million_parameters: int) -> Assignment:
        """The assignment of a new job, to rank 0 of one worker."""
        self._num_jobs += 1
        spec = (
            job()
            .set_hyperparameter(global_batch_size=job.BATCH_SIZE, million_parameters=million_parameters)
            .term_condition(max_iterations=1_000_000)
            .set_job_class("best_effort")
            .spec()
        )
        job_id = f"job-{self._num_jobs}"
        return Assignment(
            job_id=job_id,
            plan=GenerationPlan(generation=1, world_size=1),
            rank=0,
            spec=spec,
            checkpoint_dir=str(self._data_dir / "checkpoints" / job_id),
            checkpoint_every_s=_EVENT_TIMEOUT_S,
        )

    async def receive(self, kind: type[T], worker: WorkerHandle, rendezvous: Sequence[WorkerHandle] = ()) -> T:
        """The next event of this kind from this worker; its earlier events are dropped. rendezvous: workers that
        receive the address of rank 0 when it listens. Raises RuntimeError if this worker ends first."""
        async with asyncio.timeout(_EVENT_TIMEOUT_S):
            while True:
                unheard = self._unheard[worker]
                while unheard:
                    event = unheard.pop(0)
                    if isinstance(event, RendezvousListening):
                        address = f"127.0.0.1:{event.port}"
                        for other in rendezvous[1:]:
                            other.send(JoinRendezvous(generation=event.generation, address=address))
                    if isinstance(event, kind):
                        return event
                    if isinstance(event, Failed | Exited):
                        raise RuntimeError(f"a worker ended before its {kind.__name__}: {event}")
                self._changed.clear()
                await self._changed.wait()

    def _note(self, worker: WorkerHandle, event: WorkerEvent) -> None:
        self.received_at_s[type(event)] = time.monotonic()
        self._unheard[worker].append(event)
        self._changed.set()


class HasLauncher(Protocol):
    @property
    def launcher(self) -> Launcher: ...


Launching = TypeVar("Launching", bound=HasLauncher)


@asynccontextmanager
async def launching(make: Callable[[Path, Device], Launching], device: Device) -> AsyncIterator[Launching]:
    """What has a launcher, in a folder of its own; the launcher runs meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        made = make(Path(folder), device)
        await made.launcher.start()
        try:
            yield made
        finally:
            await made.launcher.close()


def running_engine(device: Device = Device.CPU) -> AbstractAsyncContextManager[Engine]:
    return launching(Engine, device)


# --- workers, and a switch of them to another generation -----------------------------------------------


@dataclass(eq=False)
class Worker:
    """One process. generation: the one in which it trains, 0 before that. iteration: steps done, as last reported."""

    handle: WorkerHandle
    generation: int = 0
    rank: int = 0
    iteration: int = 0
    interrupted: bool = False
    exited: Exited | None = None

    @property
    def gang(self) -> tuple[int, int]:
        """The generation in which its gang has begun, and the gang's number there."""
        began = self.handle.assignment
        return began.plan.generation, began.rank // began.spec.gang_size

    @property
    def has_state(self) -> bool:
        return self.generation > 0 and self.exited is None

    def signal(self, number: signal.Signals) -> None:
        """Send the signal to this process only, if it still runs."""
        if self.exited is None:
            os.kill(self.handle.pid, number)


@dataclass(frozen=True, slots=True)
class CrewSwitch:
    """A switch to a generation. by_rank: all workers of the rendezvous, the `size` members first."""

    generation: int
    size: int
    by_rank: tuple[Worker, ...]

    @property
    def members(self) -> tuple[Worker, ...]:
        return self.by_rank[: self.size]

    @property
    def is_complete(self) -> bool:
        leaving = self.by_rank[self.size :]
        return all(w.generation == self.generation and w.has_state for w in self.members) and all(
            w.exited is not None for w in leaving
        )

    @property
    def is_broken(self) -> bool:
        """A staying worker is gone, or a leaving one was killed."""
        return any(w.exited is not None for w in self.members) or any(
            w.exited is not None and w.exited.code != ExitCode.DONE for w in self.by_rank[self.size :]
        )


# --- the crew ------------------------------------------------------------------------------------------


_TIMEOUT_S = 120.0  # without any event; far above the usual time, also of a compilation
_SETTLE_S = 1.0  # after a loss: other workers may have switched or left, and their events are under way


@dataclass(kw_only=True)
class Crew:
    """The workers of one job. members: by rank in the newest generation, including lost ones until the next switch.

    timelines: of all switches without a stop, as rank 0 of the new generation reports them. counts_of: virtual nodes by
    rank of a new generation, by its size; empty: as even as possible. cpu_shares: of a core, of the slots of new
    workers, by rank in turn.
    """

    job_id: str
    spec: JobSpec
    folder: Path
    launcher: Launcher
    device: Device = Device.CPU
    checkpoint_every_s: float = 0.5
    counts_of: Callable[[int], tuple[int, ...]] = lambda _: ()
    cpu_shares: Sequence[float] = (1.0,)
    members: tuple[Worker, ...] = ()
    timelines: list[ResizeTimeline] = field(default_factory=list[ResizeTimeline])
    finished: Finished | None = None
    failure: str = ""
    generation: int = 0  # the newest
    checkpointed: int = 0  # iteration of the newest reported checkpoint
    _workers: dict[int, Worker] = field(default_factory=dict[int, Worker])  # by process id
    _present_switch: CrewSwitch | None = None
    _is_broken: bool = False  # the last one failed
    _address: str = ""  # where its rank 0 listens
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def checkpoint_dir(self) -> Path:
        return self.folder / "checkpoints" / self.job_id

    @property
    def holders(self) -> tuple[Worker, ...]:
        """Running members that have the state of the job, by rank: whole gangs of them."""
        return self._whole_gangs(worker for worker in self.members if worker.has_state)

    @property
    def gang_size(self) -> int:
        return self.spec.gang_size

    @property
    def gangs(self) -> list[tuple[Worker, ...]]:
        """The holders of each gang, by position."""
        starts = range(0, len(self.holders), self.gang_size)
        return [self.holders[start : start + self.gang_size] for start in starts]

    def _whole_gangs(self, workers: Iterable[Worker]) -> tuple[Worker, ...]:
        """Those whose gang is complete, as the ledger counts them."""
        workers = tuple(workers)
        there = Counter(worker.gang for worker in workers)
        return tuple(worker for worker in workers if there[worker.gang] == self.gang_size)

    @property
    def processes(self) -> tuple[Worker, ...]:
        """All that run."""
        return tuple(worker for worker in self._workers.values() if worker.exited is None)

    async def start(self, size: int) -> bool:
        """Start all workers anew, from the newest checkpoint or from nothing. Returns whether all started."""
        return await self._switch_to((None,) * size, ())

    async def switch(self, members: Sequence[Worker | None]) -> bool:
        """Switch to a generation of these workers, by rank; None: a new one. Other holders of the state leave.

        Returns whether all switched. If not, a worker is lost; the others wait or train on, and `shrink_to_survivors`
        follows.
        """
        return await self._switch_to(members, tuple(w for w in self.holders if w not in members))

    async def resize(self, size: int) -> bool:
        """Switch to so many workers: the first of the holders, and new ones. Returns whether all switched."""
        staying = self.holders[:size]
        return await self.switch([*staying, *[None] * (size - len(staying))])

    async def shrink_to_survivors(self) -> None:
        """Switch to the survivors until no member is lost."""
        while self.holders and any(worker.exited is not None or worker.interrupted for worker in self.members):
            await self._switch_to(self.holders, ())

    async def suspend(self) -> bool:
        """Stop at a step boundary, with the state on the disk. Returns whether all members did."""
        whole = len(self.holders) == len(self.members)
        for worker in self.holders:
            worker.handle.send(StopAtBoundary())
        await self.until(lambda: not self.processes, "all have stopped")
        return whole and all(w.exited is not None and w.exited.code == ExitCode.DONE for w in self.members)

    def newest_state(self) -> dict[str, Any]:
        """The state of the newest checkpoint, of any generation. The job has ended or was suspended."""
        state = CheckpointStore(self.checkpoint_dir, generation=1 << 30).newest()
        assert state is not None, "an ended job leaves a checkpoint"
        return state

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Raises AssertionError if no event comes for long, or if a worker reports that the job has failed."""
        try:
            while not holds():
                assert not self.failure, f"{self.job_id}: {self.failure}"
                self._changed.clear()
                await asyncio.wait_for(self._changed.wait(), _TIMEOUT_S)
        except TimeoutError:
            what = f"no event for {_TIMEOUT_S:.0f} s while waiting until {what}"
            raise AssertionError(f"{self.job_id}: {what}: {self._describe()}") from None

    def note(self, handle: WorkerHandle, event: WorkerEvent) -> None:
        """Note any event of a worker of this job, which the launcher passes on."""
        worker = self._workers.get(handle.pid)
        if worker is None or worker.handle is not handle:  # it arrived before `launch` returned
            worker = self._workers[handle.pid] = Worker(handle)
        match event:
            case RendezvousListening(generation=generation, port=port):
                if generation == self.generation:
                    self._address = f"127.0.0.1:{port}"
                    self._pass_on_rendezvous()
            case Started(iteration=iteration):
                worker.generation, worker.rank = handle.assignment.plan.generation, handle.assignment.rank
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
            case CheckpointWritten(iteration=iteration):
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

    async def _switch_to(self, members: Sequence[Worker | None], leaving: tuple[Worker, ...]) -> bool:
        for worker in self.members:  # as an executor does with the rest of a lost gang
            if worker.has_state and worker not in self.holders:
                worker.handle.kill()
        if self._is_broken or any(not worker.has_state for worker in self.members):  # as the ledger would report
            for worker in self.holders:
                worker.handle.send(PeersLost(generation=self.generation))
        self.generation, self._address = self.generation + 1, ""
        generation, size = self.generation, len(members)
        some_have_state = bool(leaving) or any(members)
        rendezvous_size = size + len(leaving) if some_have_state else 0
        counts = self.counts_of(size)
        for rendezvous_rank, worker in enumerate((*members, *leaving)):
            if worker is not None:
                worker.handle.send(
                    PrepareSwitch(
                        plan=GenerationPlan(
                            generation=generation,
                            world_size=size,
                            rendezvous_size=rendezvous_size,
                            virtual_nodes_by_rank=counts,
                        ),
                        rendezvous_rank=rendezvous_rank,
                    )
                )
        joining = {
            rank: await self._launch(generation, rank, size, rendezvous_size, counts)
            for rank, worker in enumerate(members)
            if worker is None
        }
        there = [worker or joining[rank] for rank, worker in enumerate(members)]
        before, change = self.holders, CrewSwitch(generation, size, (*there, *leaving))
        self._present_switch = change
        self._pass_on_rendezvous()
        await self.until(
            lambda: change.is_complete or change.is_broken or self.finished is not None,
            f"generation {generation} trains",
        )
        if change.is_broken:
            await asyncio.sleep(_SETTLE_S)
        made, self._present_switch, self._is_broken = change.is_complete, None, not change.is_complete
        if not made:
            await self._end_joining(list(joining.values()))
        self.members = change.members if made else tuple(w for w in (*before, *joining.values()) if w.has_state)
        return made

    async def _end_joining(self, joining: Sequence[Worker]) -> None:
        """End joining workers that have not received the state."""
        useless = [worker for worker in joining if not worker.has_state]
        for worker in useless:
            worker.handle.kill()
        await self.until(lambda: all(worker.exited is not None for worker in useless), "useless joining are gone")

    async def _launch(
        self, generation: int, rank: int, world_size: int, rendezvous_size: int, counts: tuple[int, ...]
    ) -> Worker:
        assignment = Assignment(
            job_id=self.job_id,
            plan=GenerationPlan(
                generation=generation,
                world_size=world_size,
                rendezvous_size=rendezvous_size,
                virtual_nodes_by_rank=counts,
            ),
            rank=rank,
            spec=self.spec,
            checkpoint_dir=str(self.checkpoint_dir),
            checkpoint_every_s=self.checkpoint_every_s,
            cpu_share=self.cpu_shares[rank % len(self.cpu_shares)],
            **device_fields(self.device, rank),
        )
        handle = await self.launcher.launch(assignment)
        return self._workers.setdefault(handle.pid, Worker(handle))

    def _pass_on_rendezvous(self) -> None:
        """Rank 0 may listen before the last worker is launched."""
        if not self._address or self._present_switch is None:
            return
        for worker in self._present_switch.by_rank[1:]:
            worker.handle.send(JoinRendezvous(generation=self._present_switch.generation, address=self._address))

    def _describe(self) -> str:
        return "; ".join(
            f"{w.handle.pid} g{w.generation}-r{w.rank} at {w.iteration}{' interrupted' if w.interrupted else ''}"
            for w in (*self.members, *self.processes)
        )
