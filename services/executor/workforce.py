"""The executor's hands: the worker processes of this node, as the policy's actions want them."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from services.executor.assigning import assignment
from services.executor.code_archive import CodeArchive, CodeUnusable
from services.executor.fork_server import Exited
from services.executor.launcher import OnEvent, WorkerEvent, WorkerHandle
from services.executor.notes import (
    Action,
    AskForCheckpoint,
    ChangeMembers,
    Depart,
    Ended,
    KillWorker,
    KillWorkers,
    Note,
    Said,
    StartWorker,
    StopWorkers,
    TellPeersLost,
    TellRendezvous,
    WorkerId,
)
from services.executor.settings import ExecutorSettings
from shared.errors import ElasticFlowError
from shared.messages.from_worker import ExitCode, Failed, Switched
from shared.messages.to_worker import (
    Assignment,
    ChangeMembership,
    JoinRendezvous,
    LeaseExtended,
    PeersLost,
    SaveCheckpoint,
    StopAtBoundary,
    ToWorker,
)


class Launching(Protocol):
    """What starts processes; `launcher.Launcher` in earnest."""

    async def start(self) -> None: ...
    async def launch(self, assignment: Assignment) -> WorkerHandle: ...
    async def close(self) -> None: ...


@dataclass(slots=True)
class _Post:
    """A worker from the wish to its end. change: the newest that it was told; unsent: what it is to hear once it has
    a channel."""

    handle: WorkerHandle | None = None
    change: ChangeMembers | None = None
    launching: bool = False
    unwanted: bool = False
    unsent: list[ToWorker] = field(default_factory=list)
    starting: asyncio.Task[None] | None = None


class Workforce:
    """note: where a worker's words and end go; depart: what to do when nothing is left to do."""

    def __init__(
        self,
        settings: ExecutorSettings,
        data_dir: Path,
        code: CodeArchive,
        *,
        make_launcher: Callable[[OnEvent], Launching],
        note: Callable[[Note], None],
        depart: Callable[[Depart], None],
        log: Any,
    ) -> None:
        self._settings, self._data_dir, self._code = settings, data_dir, code
        self._launcher = make_launcher(self._on_event)
        self._note, self._depart, self._log = note, depart, log
        self._posts: dict[WorkerId, _Post] = {}
        self._lease: LeaseExtended | None = None  # the newest; None: the ledger's end was not yet in sight
        self._tasks = asyncio.TaskGroup()

    async def open(self) -> None:
        """Return once no worker of an earlier incarnation is left, and new ones can be started."""
        await self._launcher.start()

    async def run(self) -> None:
        """Start workers as `act` asks for them, until cancelled."""
        async with self._tasks:
            await asyncio.Event().wait()

    async def close(self) -> None:
        """Kill what is left; return when it is gone."""
        self.kill_all()
        await self._launcher.close()

    def act(self, action: Action) -> None:
        """One action of the policy; does not block."""
        match action:
            case StartWorker():
                post = self._posts[action.worker] = _Post()
                post.starting = self._tasks.create_task(self._start(action, post))
            case ChangeMembers():
                self._change(action)
            case TellRendezvous():
                for worker in self._in_places_after_the_first(action):
                    told = JoinRendezvous(generation=action.generation, address=action.address)
                    self._send(worker, told)
            case TellPeersLost():
                self._log.info("TellPeersLost", **action.worker._asdict(), up_to=action.generation)
                self._send(action.worker, PeersLost(generation=action.generation))
            case AskForCheckpoint():
                self._send(action.worker, SaveCheckpoint(request=action.request))
            case StopWorkers():
                self._log.info("StopWorkers", job_id=action.job_id, generation=action.generation)
                for worker in self._of_generation(action):
                    self._send(worker, StopAtBoundary())
            case KillWorker():
                self._log.info("KillWorker", **action.worker._asdict())
                self._kill(action.worker)
            case KillWorkers():
                self._log.info("KillWorkers", job_id=action.job_id, generation=action.generation)
                for worker in self._of_generation(action):
                    self._kill(worker)
            case Depart():
                self._depart(action)

    def kill_all(self) -> None:
        for worker in tuple(self._posts):
            self._kill(worker)

    def extend_leases(self, until_s: float) -> None:
        """Let all workers train until then (boot clock), and those that start in the meantime."""
        self._lease = LeaseExtended(until_s=until_s)
        for post in self._posts.values():
            if post.handle is not None:
                post.handle.send(self._lease)

    def _change(self, action: ChangeMembers) -> None:
        self._log.info("ChangeMembers", **action.worker._asdict(), to=action.generation, place=action.place)
        self._posts[action.worker].change = action
        change = ChangeMembership(
            generation=action.generation,
            place=action.place,
            world_size=action.world_size,
            meeting_size=action.meeting_size,
            rendezvous=action.rendezvous,
            micro_batch_size=action.micro_batch_size,
        )
        self._send(action.worker, change)

    def _in_places_after_the_first(self, action: TellRendezvous) -> list[WorkerId]:
        """Of a meeting: those who were started for its generation, and those who go over to it."""
        meeting = (action.job_id, action.generation)
        places = {
            worker: worker
            if (change := post.change) is None
            else (worker.job_id, change.generation, change.place)
            for worker, post in self._posts.items()
        }
        return [worker for worker, place in places.items() if place[:2] == meeting and place[2] != 0]

    def _of_generation(self, action: StopWorkers | KillWorkers) -> list[WorkerId]:
        return [worker for worker in self._posts if worker[:2] == (action.job_id, action.generation)]

    def _send(self, worker: WorkerId, message: ToWorker) -> None:
        post = self._posts[worker]
        if post.handle is not None:
            post.handle.send(message)
        else:
            post.unsent.append(message)

    def _kill(self, worker: WorkerId) -> None:
        post = self._posts[worker]
        if post.unwanted:
            return
        post.unwanted = True
        if post.handle is not None:
            post.handle.kill()
        elif not post.launching and post.starting is not None:  # it waits for code; there is no process yet
            post.starting.cancel()
            self._ended(Ended(worker=worker, exit_code=ExitCode.DONE))

    # -- starting ----------------------------------------------------------------------------------------

    async def _start(self, action: StartWorker, post: _Post) -> None:
        worker = action.worker
        try:
            code_path = await self._code.folder(action.spec.code_digest)
            post.launching = True  # from here on a process may exist: it is killed once it is known
            handle = await self._launcher.launch(
                assignment(action, self._settings, self._data_dir, code_path)
            )
        except CodeUnusable as error:
            self._note(Said(worker=worker, message=Failed(error=str(error))))
            self._ended(Ended(worker=worker, exit_code=ExitCode.FAILED))
        except (ElasticFlowError, OSError) as error:  # no process, no disk: another try may do
            self._ended(Ended(worker=worker, explanation=str(error)))
        else:
            self._log.info("StartWorker", **worker._asdict(), pid=handle.pid, purpose=action.purpose)
            post.handle = handle
            if self._lease is not None:
                handle.send(self._lease)
            for message in post.unsent:
                handle.send(message)
            if post.unwanted:
                handle.kill()

    # -- hearing -----------------------------------------------------------------------------------------

    def _on_event(self, handle: WorkerHandle, event: WorkerEvent) -> None:
        assignment = handle.assignment
        worker = WorkerId(assignment.job_id, assignment.generation, assignment.rank)
        if isinstance(event, Exited):
            self._log.info("WorkerEnded", **worker._asdict(), exit_code=event.code, signal=event.signal)
            self._ended(Ended(worker=worker, exit_code=event.code, signal=event.signal))
        else:
            self._note(Said(worker=worker, message=event))
            if isinstance(event, Switched):
                self._switched(worker, handle, event)

    def _switched(self, worker: WorkerId, handle: WorkerHandle, switched: Switched) -> None:
        """The process is another worker from now on."""
        handle.assignment = replace(handle.assignment, generation=switched.generation, rank=switched.rank)
        member = WorkerId(worker.job_id, switched.generation, switched.rank)
        self._posts[member] = self._posts.pop(worker)
        self._log.info("WorkerSwitched", **member._asdict(), before=worker.generation, pid=handle.pid)

    def _ended(self, note: Ended) -> None:
        with contextlib.suppress(KeyError):  # its last words may come after it was given up
            del self._posts[note.worker]
            self._note(note)
