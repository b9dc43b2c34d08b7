"""A training whose gradients are tasks of a padding load: feeds the tasks of its manager to the pool.

The results of tasks are only signs of life, because gradients travel between runners and manager.
"""

import asyncio
import contextlib
import os
import pickle
import queue
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from elasticflow.client.client import Client
from elasticflow.client.command_requests import Package
from elasticflow.errors import InvalidJob, ManagerEnded, TaskError, TrainingRefused
from elasticflow.shared.messages.limits import MAX_BATCH
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.worker_protocol.frames import BrokenChannel, FrameReader, encode_frame
from elasticflow.shared.messages.worker_protocol.from_worker import (
    CheckpointWritten,
    Failed,
    Finished,
    FromWorker,
    Interrupted,
    Progressed,
    Started,
)
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, StopAtBoundary, WriteLog
from elasticflow.shared.messages.worker_protocol.training_tasks import FromManager, GradientTask, ManagerReady, TasksDue
from elasticflow.shared.runtime.process.run_module import module_command

# --- The process that manages a training in tasks: its start, its messages and its end -----------------
# The process imports torch and the engine of the workers, which the client does not.

_MODULE = "elasticflow.services.executor.worker.training_tasks"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # as workers have it: the same bits
_STOP_TIMEOUT_S = 60.0  # for a checkpoint
_READ_BYTES = 1 << 16


class TrainingManager:
    """One manager process. It ends with this process."""

    def __init__(self, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        self._process, self._channel = process, channel
        self._ending = asyncio.create_task(self._end_messages(), name="end of the training manager")

    @classmethod
    async def start(cls, assignment: Assignment, log_file: Path) -> "TrainingManager":
        """log_file: of all output of the process. Raises OSError."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *module_command(_MODULE, str(theirs.fileno())),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                env=os.environ | _ONE_THREAD,
                start_new_session=True,  # a Ctrl-C in the terminal reaches only this process
            )
        manager = cls(process, ours)
        await manager._send(WriteLog(file=str(log_file)))
        await manager._send(assignment)
        return manager

    @property
    def pid(self) -> int:
        return self._process.pid

    async def messages(self) -> AsyncIterator[FromWorker | FromManager]:
        """The messages until the process ends."""
        frames = FrameReader[FromWorker | FromManager](*get_args(FromWorker), *get_args(FromManager))
        while data := await self._receive():
            try:
                for message in frames.feed(data):
                    yield message
            except BrokenChannel:  # the process was killed within a message
                return

    async def stop(self) -> None:
        """Let it write a checkpoint, and wait for its end. Kills it after a minute."""
        with contextlib.suppress(OSError):
            await self._send(StopAtBoundary())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_TIMEOUT_S):
                    while await self._receive():
                        pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._ending
            self._channel.close()

    async def _end_messages(self) -> None:
        """End the messages after those that it has sent.

        Its processes that read data may survive it, and hold the channel open.
        """
        await self._process.wait()
        self._channel.shutdown(socket.SHUT_RD)

    async def _send(self, message: WriteLog | Assignment | StopAtBoundary) -> None:
        await asyncio.get_running_loop().sock_sendall(self._channel, encode_frame(message))

    async def _receive(self) -> bytes:
        try:
            return await asyncio.get_running_loop().sock_recv(self._channel, _READ_BYTES)
        except OSError:
            return b""


# --- training load -------------------------------------------------------------------------------------

TASK_FUNCTION = "elasticflow.services.executor.worker.training_tasks.gradient_task:compute"
LOG_NAME = "manager.log"
_END_S = 1.0  # from the failure of a task to the end of the manager that it could not reach
_LOAD_NAME = "load"  # a file with the id of the load, so that the next start cancels what a crash has left


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """Iterations done and their last metrics; checkpoint_iteration: those that the newest checkpoint holds."""

    iteration: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    checkpoint_iteration: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """checkpoint_every_s: seconds between two checkpoints. micro_batch_size: the most samples of one forward pass; 0: a
    whole virtual node. device: of the manager. advertise_host: this machine's address for the nodes; "": that on the
    route to NATS.

    task_s, overhead_s: of one task, about; None: as the manager measures it. memory_bytes: of a GPU or slot; 0: any.
    Raises InvalidJob.
    """

    checkpoint_every_s: float = 30.0
    micro_batch_size: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    advertise_host: str = ""
    task_s: float | None = None
    overhead_s: float | None = None
    memory_bytes: int = 0
    task_timeout_s: float = 3_600.0

    def __post_init__(self) -> None:
        if not self.checkpoint_every_s > 0:
            raise InvalidJob(f"checkpoint_every_s: must be above 0, not {self.checkpoint_every_s}")
        if not 0 <= self.micro_batch_size <= MAX_BATCH:
            raise InvalidJob(f"micro_batch_size: must be from 0 to {MAX_BATCH} samples, not {self.micro_batch_size}")


async def train_in_tasks(
    client: Client,
    assignment: Assignment,
    code: Package | None,
    *,
    options: TrainingOptions,
    on_progress: Callable[[TrainingProgress], None],
) -> TrainingProgress:
    """Train to the end, from the newest checkpoint in the assignment's folder. If cancelled, write a checkpoint first.

    The load has the name of the assignment's job. Raises LoadNotOpened, LoadWasCancelled, TaskError, TrainingRefused,
    ManagerEnded, Undecided.
    """
    folder = Path(assignment.checkpoint_dir)
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    left = folder / _LOAD_NAME
    if left.exists():
        await client.cancel_load(left.read_text(), reason="its training was started again")  # or it has ended
    manager = await TrainingManager.start(assignment, folder / LOG_NAME)
    try:
        training = _Training(client, manager, assignment, code, options, on_progress)
        trained = await training.run()
    finally:
        await manager.stop()
    left.unlink(missing_ok=True)
    return trained


class _Training:
    def __init__(
        self,
        client: Client,
        manager: TrainingManager,
        assignment: Assignment,
        code: Package | None,
        options: TrainingOptions,
        on_progress: Callable[[TrainingProgress], None],
    ) -> None:
        self._client, self._manager, self._assignment = client, manager, assignment
        self._code, self._options, self._on_progress = code, options, on_progress
        self._due: queue.SimpleQueue[GradientTask | None] = queue.SimpleQueue()
        self._is_ready: asyncio.Future[ManagerReady] = asyncio.get_running_loop().create_future()

    async def run(self) -> TrainingProgress:
        following = asyncio.create_task(self._follow(), name="training manager")
        executing = asyncio.create_task(self._execute(following), name="training tasks")
        try:
            await asyncio.wait({following, executing}, return_when=asyncio.FIRST_EXCEPTION)
            for task in (following, executing):
                if task.done():
                    task.result()
            return following.result()
        finally:
            following.cancel()
            executing.cancel()
            await asyncio.wait({following, executing})
            self._due.put(None)  # a thread may wait for the next input

    async def _follow(self) -> TrainingProgress:
        ready: ManagerReady | None = None
        progress = TrainingProgress()
        async for message in self._manager.messages():
            match message:
                case ManagerReady():
                    ready = message
                    self._is_ready.set_result(message)
                case TasksDue(step=step, virtual_nodes=virtual_nodes):
                    assert ready is not None
                    for virtual_node in virtual_nodes:
                        self._due.put(GradientTask(ready.address, ready.secret, step, virtual_node))
                case Started(iteration=iteration):
                    progress = TrainingProgress(iteration=iteration, checkpoint_iteration=iteration)
                    self._on_progress(progress)
                case Progressed(iteration=iteration, metrics=metrics):
                    progress = replace(progress, iteration=iteration, metrics=metrics)
                    self._on_progress(progress)
                case CheckpointWritten(iteration=iteration):
                    progress = replace(progress, checkpoint_iteration=iteration)
                    self._on_progress(progress)
                case Failed(error=error, traceback=traceback):
                    raise TrainingRefused(error, traceback)
                case Interrupted(micro_batch_size=size) if size:
                    raise TrainingRefused(
                        f"a forward pass of {size} samples exceeds the memory of the manager: give --micro-batch a "
                        "smaller number of samples"
                    )
                case Finished(iteration=iteration, metrics=metrics):
                    self._due.put(None)
                    return replace(progress, iteration=iteration, metrics=metrics)
                case _:
                    pass
        raise ManagerEnded(str(Path(self._assignment.checkpoint_dir) / LOG_NAME))

    async def _execute(self, following: asyncio.Task[TrainingProgress]) -> None:
        """One load to the end of the training. Bundles of one task spread a step over all idle GPUs."""
        spec = self._load_spec(await self._is_ready)
        (Path(self._assignment.checkpoint_dir) / _LOAD_NAME).write_text(self._assignment.job_id)
        results = self._client.results_of(
            self._inputs(), spec, load_id=self._assignment.job_id, code=self._code, max_bundle_tasks=1
        )
        async with contextlib.aclosing(results):
            async for result in results:
                if result.value is None and not await _has_finished(following):
                    raise TaskError(result.index, result.attempts, result.error, result.traceback)
                if result.value and isinstance(reason := pickle.loads(result.value), str):
                    raise TrainingRefused(reason)

    def _inputs(self) -> Iterator[GradientTask]:
        return iter(self._due.get, None)

    def _load_spec(self, ready: ManagerReady) -> LoadSpec:
        options = self._options
        task_s = ready.task_s if options.task_s is None else options.task_s
        overhead_s = ready.overhead_s if options.overhead_s is None else options.overhead_s
        return LoadSpec(
            task_function=TASK_FUNCTION,
            code_digest=self._code.code_digest if self._code else "",
            task_s=task_s,
            overhead_s=overhead_s,
            start_stop_s=ready.start_stop_s,
            memory_bytes=options.memory_bytes,
            task_timeout_s=options.task_timeout_s,
            description=f"gradients of {self._assignment.spec.training_function}",
        )


async def _has_finished(following: asyncio.Task[TrainingProgress]) -> bool:
    """Whether a task has failed only because the manager had finished. Raises what else has ended the manager."""
    await asyncio.wait({following}, timeout=_END_S)
    return following.done() and bool(following.result())
