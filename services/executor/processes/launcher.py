"""Starts, signals and follows the worker processes of one node. Asynchronous; never imports torch.

A fork server (`python -m elasticflow.services.executor.worker`) has the libraries loaded. Each worker is a fork of it
with its own channel to the launcher; so are the runners of padding loads (`task_runner.py`). The fork server ends what
a worker leaves, in any session. Three mechanisms end a worker and its descendants with its executor: the end of file on
the fork server's socket, the end of file on the worker's channel, and at the next start the control groups, where there
are any, and the marks in the environment. If the fork server is killed, the kernel's parent death signal ends its
workers, and its keeper what they started.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

from elasticflow.services.executor.processes.fork_server_client import (
    Exited,
    ForkedProcess,
    ForkServerClient,
    LaunchFailed,
    cpu_s_if_stopped,
    fork_process,
    kill_marked,
)
from elasticflow.services.executor.processes.job_environments import EnvironmentServers
from elasticflow.services.executor.processes.job_logs import bounded
from elasticflow.services.executor.processes.rate_limit import TokenBucket
from elasticflow.services.executor.processes.worker_isolation import NOT_ISOLATED, WorkerIsolation
from elasticflow.shared.messages.job_environment import is_read_with_cuda
from elasticflow.shared.messages.job_spec import TORCHRUN
from elasticflow.shared.messages.worker_protocol.forking import EnterEnvironment
from elasticflow.shared.messages.worker_protocol.frames import BrokenChannel, FrameReader
from elasticflow.shared.messages.worker_protocol.from_worker import FromWorker
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, ToWorker, WarmUp, WriteLog
from elasticflow.shared.runtime.process.logs import log
from elasticflow.shared.runtime.service.run_service import keep_up

# --- frame rate ----------------------------------------------------------------------------------------
# How many messages a worker may send: each waits in its executor's memory until the next decision.

FRAMES_PER_S = 100.0  # in the long run; a worker reports its progress twice a second, and each checkpoint
MAX_AT_ONCE = 1_000


class FrameRate(TokenBucket):
    """The message rate of one worker. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(MAX_AT_ONCE, FRAMES_PER_S, clock)

    def count_one(self) -> None:
        """Raises BrokenChannel if the worker has sent too many."""
        if not self.takes_one():
            raise BrokenChannel(f"it sends more than {FRAMES_PER_S:g} messages a second")


# --- warm pool -----------------------------------------------------------------------------------------
# The warm pool: a worker forked ahead for each free GPU up to a limit, which takes the next assignment of its GPU.
#
# A CUDA context cannot be forked, so each warm worker makes its own before a job needs it. No process serves two jobs
# (decision record 0020). While a job has the GPU, no warm worker is there: its context would take half a gigabyte of
# memory (decision record 0083). A dead one is replaced after a pause: a GPU that is unusable now may be usable later.

_PAUSE_S = 1.0  # after the last worker on a GPU: the next one may start there at once
_FIRST_FORK_RETRY_S, _LAST_FORK_RETRY_S = 2.0, 60.0


class _Gpu:
    """num_workers: of jobs. warm: waits for a job. used: once a worker of a job begins."""

    def __init__(self) -> None:
        self.num_workers = 0
        self.warm: ForkedProcess | None = None
        self.used, self.free = asyncio.Event(), asyncio.Event()
        self.free.set()

    def end_warm(self) -> None:
        """It ends with its channel."""
        if self.warm is not None:
            self.warm.channel.close()
            self.warm = None


class WarmPool:
    """fork: a new process that uses these slots. Raises LaunchFailed."""

    def __init__(
        self,
        fork: Callable[[Sequence[int]], Awaitable[ForkedProcess]],
        *,
        device: Literal["cpu", "cuda"],
        num_gpus: int,
    ) -> None:
        self._fork = fork
        self._device: Literal["cpu", "cuda"] = device
        self._gpus = [_Gpu() for _ in range(num_gpus)]

    @property
    def ready(self) -> dict[int, int]:
        """Process ids by GPU index."""
        return {index: gpu.warm.pid for index, gpu in enumerate(self._gpus) if gpu.warm is not None}

    async def run(self) -> None:
        """Keep a warm worker for each free GPU, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for gpu_index, gpu in enumerate(self._gpus):
                    tasks.create_task(self._keep(gpu_index, gpu), name=f"warm worker {gpu_index}")
        finally:
            for gpu in self._gpus:
                gpu.end_warm()

    def enter(self, gpu_index: int, *, may_be_warm: bool) -> ForkedProcess | None:
        """A worker of a job begins on this GPU, until `leave`: the warm one if there is one and it may be that. Else
        the warm one ends."""
        if gpu_index >= len(self._gpus):
            return None
        gpu = self._gpus[gpu_index]
        gpu.num_workers += 1
        gpu.free.clear()
        gpu.used.set()
        worker = gpu.warm
        if worker is None or worker.exited.done() or not may_be_warm:
            gpu.end_warm()
            return None
        gpu.warm = None
        return worker

    def leave(self, gpu_index: int) -> None:
        """Its process has ended."""
        if gpu_index >= len(self._gpus):
            return
        gpu = self._gpus[gpu_index]
        gpu.num_workers -= 1
        if gpu.num_workers == 0:
            gpu.used.clear()
            gpu.free.set()

    async def _keep(self, gpu_index: int, gpu: _Gpu) -> None:
        retry_s = _FIRST_FORK_RETRY_S
        while True:
            while not gpu.free.is_set():
                await gpu.free.wait()
                await asyncio.sleep(_PAUSE_S)
            try:
                worker = await self._fork((gpu_index,))
            except LaunchFailed as error:
                log.warning("warm_worker_not_started", gpu_index=gpu_index, reason=str(error))
            else:
                if await self._is_used_before_the_end_of(worker, gpu_index, gpu):
                    retry_s = _FIRST_FORK_RETRY_S
                    continue
                log.warning("warm_worker_died", gpu_index=gpu_index, exited=str(worker.exited.result()))
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LAST_FORK_RETRY_S)

    async def _is_used_before_the_end_of(self, worker: ForkedProcess, gpu_index: int, gpu: _Gpu) -> bool:
        """Let it wait for a job."""
        gpu.warm = worker
        if gpu.used.is_set():  # while it was forked
            gpu.end_warm()
            return True
        worker.channel.send(WarmUp(device=self._device, gpu_index=gpu_index))
        used = asyncio.create_task(gpu.used.wait())
        await asyncio.wait({used, worker.exited}, return_when=asyncio.FIRST_COMPLETED)
        if used.done():
            return True
        used.cancel()
        gpu.end_warm()
        return False


# --- launcher ------------------------------------------------------------------------------------------

_FORK_TIMEOUT_S = 20.0
_SERVER = "EF_FORK_SERVER"  # names the fork server of a process: the node's, or the folder of an environment
_OF_THE_NODE = "node"
_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 30.0


class WorkerHandle:
    """One worker process, leader of its own process group."""

    def __init__(self, assignment: Assignment, process: ForkedProcess, log_file: Path) -> None:
        self.assignment = assignment
        self.log_file = log_file  # of this process, also after a switch
        self.process = process
        self.exited: Exited | None = None  # set with the last event

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, message: ToWorker) -> None:
        """Does not wait. No effect if the worker is gone: `Exited` follows."""
        self.process.channel.send(message)

    def kill(self) -> None:
        """SIGKILL to the worker and its descendants."""
        self.process.kill()


WorkerEvent = FromWorker | Exited
OnEvent = Callable[[WorkerHandle, WorkerEvent], None]


class Launcher:
    """All worker processes of one node.

    on_event: called in the event loop for each message of a worker, in order, and last for its end.
    preload: modules that many training functions import, e.g. sklearn.datasets; imported once for all workers.
    gpu_names: of the GPU of each slot, for CUDA_VISIBLE_DEVICES; a GPU that slots share occurs several times.
    warm_workers: the first so many GPUs have a warm worker.
    isolation: of each worker.
    data_interface: by which gloo and NCCL connect workers; "": workers choose it.
    """

    def __init__(
        self,
        *,
        data_dir: Path,
        node_id: str,
        on_event: OnEvent,
        preload: Sequence[str] = (),
        device: Literal["cpu", "cuda"] = "cpu",
        gpu_names: Sequence[str] = (),
        warm_workers: int = 0,
        data_interface: str = "",
        isolation: WorkerIsolation = NOT_ISOLATED,
    ) -> None:
        self._logs = data_dir.resolve() / "logs"
        self._marks = {"EF_WORKER": "1", "EF_NODE_ID": node_id, "EF_DATA_DIR": str(data_dir.resolve())}
        self._gpus = {"CUDA_VISIBLE_DEVICES": ",".join(gpu_names)} if gpu_names else {}
        self._network = (  # NCCL matches prefixes of names, unless "=" precedes
            {"GLOO_SOCKET_IFNAME": data_interface, "NCCL_SOCKET_IFNAME": f"={data_interface}"} if data_interface else {}
        )
        self._isolation = isolation
        self._on_event = on_event
        self._preload = preload
        self._server: ForkServerClient | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._server_ready = asyncio.Event()
        self._forking = asyncio.Lock()
        self._environments = EnvironmentServers(self._start_environment, self._environment_ended)
        self._followers: set[asyncio.Task[None]] = set()
        self.warm_pool = WarmPool(self.fork, device=device, num_gpus=warm_workers)
        self._warming: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Kill the processes of earlier incarnations of this node, then start the fork server."""
        if self._isolation.cgroups is not None:
            await asyncio.to_thread(self._isolation.cgroups.end_left_over)
        if killed := await asyncio.to_thread(kill_marked, self._marks):
            log.warning("leftover_workers_killed", pids=killed)
        await self._start_server()
        self._keeper = asyncio.create_task(keep_up("fork server", self._keep_server, log=log), name="fork server")
        self._warming = asyncio.create_task(keep_up("warm pool", self.warm_pool.run, log=log), name="warm_pool")

    async def launch(self, assignment: Assignment) -> WorkerHandle:
        """Give this assignment to a warm worker, or to a new one. Raises LaunchFailed.

        A torchrun script sees all GPUs of its job on this node. A warm worker sees one, and cannot see others later.
        Nor can it follow variables of the job that torch reads when it starts CUDA, or run in the job's environment.
        """
        variables = (*assignment.spec.environment, *assignment.secrets)
        gpu_index = assignment.gpu_index
        slots = assignment.shown_gpus or (gpu_index,)
        sees_them = slots == (gpu_index,) or not self._isolation.separates_gpus
        may_be_warm = assignment.spec.entry != TORCHRUN and sees_them and not any(map(is_read_with_cuda, variables))
        may_be_warm = may_be_warm and not assignment.environment_path
        process = self.warm_pool.enter(gpu_index, may_be_warm=may_be_warm)
        log_file = self.log_file(assignment.job_id, assignment.plan.generation, assignment.rank)
        try:
            process = process or await self._forked_for(assignment, slots, log_file)
        except BaseException:
            self.warm_pool.leave(gpu_index)
            raise
        process.exited.add_done_callback(lambda _: self.warm_pool.leave(gpu_index))
        handle = WorkerHandle(assignment, process, log_file)
        handle.send(WriteLog(file=str(log_file)))
        handle.send(assignment)
        follower = asyncio.create_task(self._follow(handle), name=f"worker {process.pid}")
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)
        return handle

    async def _forked_for(self, assignment: Assignment, slots: Sequence[int], log_file: Path) -> ForkedProcess:
        """A process with the Python of this job. Raises LaunchFailed."""
        folder = assignment.environment_path
        if not folder:
            return await self.fork(slots)
        if self._isolation.isolation is None:
            with self._told():
                return await self._environments.fork(folder, slots)
        process = await self.fork(slots)
        writable = (str(log_file.parent), assignment.checkpoint_dir)
        process.channel.send(EnterEnvironment(folder=folder, readable=assignment.read_folders, writable=writable))
        return process

    async def fork(self, slots: Sequence[int] = ()) -> ForkedProcess:
        """A process that uses these slots, and waits for its first message. Raises LaunchFailed."""
        with self._told():
            async with asyncio.timeout(_FORK_TIMEOUT_S), self._forking:
                await self._server_ready.wait()
                assert self._server is not None
                return await fork_process(self._server, slots)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Raises LaunchFailed if no process could be forked."""
        try:
            yield
        except (TimeoutError, OSError, EOFError) as error:
            reason = f"{type(error).__name__} {error}".strip()
            raise LaunchFailed(reason, str(self._server_log)) from error

    def log_file(self, job_id: str, generation: int, rank: int) -> Path:
        """The file of a worker's output: the newest of it (`log_rotation`)."""
        return self._logs / job_id / f"g{generation}-r{rank}.log"

    async def close(self) -> None:
        """Kill all workers and the fork server; return when none of their processes is left."""
        for task in (self._keeper, self._warming):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        await self._environments.close()
        if self._server is not None:
            await self._server.end()
        if self._followers:
            await asyncio.wait(self._followers)
        await asyncio.to_thread(kill_marked, self._marks)

    async def _follow(self, handle: WorkerHandle) -> None:
        """Pass on the worker's messages until it has ended and its last ones are read."""
        watching = asyncio.create_task(_kill_if_stopped(handle))
        handle.process.exited.add_done_callback(lambda _: watching.cancel())
        frame_rate = FrameRate(asyncio.get_running_loop().time)

        def on_message(message: FromWorker) -> None:
            frame_rate.count_one()
            self._on_event(handle, message)

        async with bounded(handle.log_file):
            end = await handle.process.follow(
                FrameReader[FromWorker](*get_args(FromWorker)),
                on_message=on_message,
                on_broken=lambda reason: log.error("worker_channel_broken", pid=handle.pid, reason=reason),
            )
            handle.exited = end
            self._on_event(handle, end)

    @property
    def _server_log(self) -> Path:
        return self._logs / "fork-server.log"

    async def _start_server(self) -> None:
        self._server = await self._started(_OF_THE_NODE)
        self._server_ready.set()

    async def _started(self, name: str, environment: Path | None = None) -> ForkServerClient:
        variables = self._marks | {_SERVER: name} | self._gpus | self._network
        log_file, isolation = self._server_log, self._isolation
        return await ForkServerClient.start(variables, log_file, self._preload, isolation, environment)

    async def _start_environment(self, folder: str) -> ForkServerClient:
        return await self._started(folder, Path(folder))

    async def _environment_ended(self, folder: str, has_died: bool) -> None:
        if has_died:
            log.error("fork_server_died", environment=folder, log_file=str(self._server_log))
        await self._kill_left(folder)

    async def _kill_left(self, name: str) -> None:
        """Kill what is left of the fork server of this name, also if its keeper was killed."""
        await asyncio.to_thread(kill_marked, self._marks | {_SERVER: name})

    async def _keep_server(self) -> None:
        """Restart a fork server that dies; its workers die with it."""
        retry_s = _FIRST_RETRY_S
        while True:
            if self._server is not None:
                await self._server.ended()
                self._server_ready.clear()
                log.error("fork_server_died", log_file=str(self._server_log))
                await self._server.end()
                self._server = None
                await self._kill_left(_OF_THE_NODE)
            try:
                await self._start_server()
                retry_s = _FIRST_RETRY_S
            except LaunchFailed as error:
                log.error("fork_server_not_started", reason=str(error), retry_s=retry_s)
                await asyncio.sleep(retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)


async def _kill_if_stopped(handle: WorkerHandle) -> None:
    """Kill a worker that a signal has stopped: its peers would wait for it, but notice a killed worker at once.

    It must be stopped at two polls in a row with the same CPU time; otherwise it ran in between.
    """
    before_s = cpu_s = None
    while cpu_s is None or cpu_s != before_s:
        await asyncio.sleep(handle.assignment.timeouts.heartbeat_interval_s)
        before_s, cpu_s = cpu_s, cpu_s_if_stopped(handle.pid)
    log.warning("stopped_worker_killed", pid=handle.pid, job_id=handle.assignment.job_id)
    handle.kill()
