"""Starts, signals and follows the worker processes of one node. Asynchronous; never imports torch.

A fork server (`python -m elasticflow.services.executor.worker`) has the libraries loaded. Each worker is a fork of it
with its own channel to the launcher; so are the runners of padding loads (`task_runner.py`). The fork server ends what
a worker leaves, in any session. Three mechanisms end a worker and its descendants with its executor: the end of file on
the fork server's socket, the end of file on the worker's channel, and at the next start the control groups, where there
are any, and the marks in the environment. If the fork server is killed, the kernel's parent death signal ends its
workers, and its keeper what they started.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args

import structlog

from elasticflow.services.executor.processes.fork_server_client import Exited, ForkServer, LaunchFailed
from elasticflow.services.executor.processes.forked_process import ForkedProcess, fork_process
from elasticflow.services.executor.processes.frame_rate import FrameRate
from elasticflow.services.executor.processes.log_rotation import bounded
from elasticflow.services.executor.processes.reaper import cpu_s_if_stopped, kill_marked
from elasticflow.services.executor.processes.warm_pool import WarmPool
from elasticflow.services.executor.processes.worker_isolation import NOT_ISOLATED, WorkerIsolation
from elasticflow.shared.messages.job_environment import is_read_with_cuda
from elasticflow.shared.messages.job_spec import TORCHRUN
from elasticflow.shared.messages.worker_protocol.frames import FrameReader
from elasticflow.shared.messages.worker_protocol.from_worker import FromWorker
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, ToWorker, WriteLog
from elasticflow.shared.runtime.service.housekeeping import keep_up

log = structlog.get_logger()

_FORK_TIMEOUT_S = 20.0
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
        self._server: ForkServer | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._server_ready = asyncio.Event()
        self._forking = asyncio.Lock()
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
        Nor can it follow variables of the job that torch reads when it starts CUDA.
        """
        variables = (*assignment.spec.environment, *assignment.secrets)
        may_be_warm = assignment.spec.entry != TORCHRUN and not any(map(is_read_with_cuda, variables))
        gpu_index = assignment.gpu_index
        process = self.warm_pool.enter(gpu_index, may_be_warm=may_be_warm)
        try:
            process = process or await self.fork()
        except BaseException:
            self.warm_pool.leave(gpu_index)
            raise
        process.exited.add_done_callback(lambda _: self.warm_pool.leave(gpu_index))
        log_file = self.log_file(assignment.job_id, assignment.generation, assignment.rank)
        handle = WorkerHandle(assignment, process, log_file)
        handle.send(WriteLog(file=str(log_file)))
        handle.send(assignment)
        follower = asyncio.create_task(self._follow(handle), name=f"worker {process.pid}")
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)
        return handle

    async def fork(self) -> ForkedProcess:
        """A process that waits for its first message. Raises LaunchFailed."""
        try:
            async with asyncio.timeout(_FORK_TIMEOUT_S), self._forking:
                await self._server_ready.wait()
                assert self._server is not None
                return await fork_process(self._server)
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
        environment = self._marks | self._gpus | self._network
        self._server = await ForkServer.start(environment, self._server_log, self._preload, self._isolation)
        self._server_ready.set()

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
                await asyncio.to_thread(kill_marked, self._marks)  # of a keeper that was killed, too
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
