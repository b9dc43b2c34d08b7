"""The executor on the bus: a member of the pool from NodeJoined to NodeLost, with its workers and its heartbeat."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from services.executor.code_archive import CodeArchive
from services.executor.heartbeat import Heartbeat
from services.executor.launcher import Launcher, OnEvent
from services.executor.model import Membership, Offer, State
from services.executor.notes import Depart, LeaveRequested, Note
from services.executor.policy import executor_policy
from services.executor.settings import ExecutorSettings
from services.executor.workforce import Launching, Workforce
from shared.errors import BadSettings
from shared.runtime.clock import fresh_id
from shared.runtime.host import Host
from shared.runtime.service import Process, host_policy

FAREWELL_S = 5.0  # for the last facts, after the workers have stopped or were killed

MakeLauncher = Callable[[OnEvent], Launching]


async def serve(
    process: Process, *, settings: ExecutorSettings, make_launcher: MakeLauncher | None = None
) -> None:
    """Make the placement true on this node, until cancelled; then stop the workers, and go."""
    data_dir = process.settings.data_dir
    process.log.info("node offers", **{name: getattr(settings, name) for name in settings.__slots__})
    with _only_executor(data_dir, settings.node_id):
        default = partial(_launcher, data_dir, settings)
        executor = Executor(process, settings, make_launcher or default)
        await executor.run()


class Executor:
    """One node's host, hands and heartbeat, and how they end together."""

    def __init__(self, process: Process, settings: ExecutorSettings, make_launcher: MakeLauncher) -> None:
        self._process = process
        self._offer = _offer(settings)
        self._host: Host[State] | None = None
        self._departed: asyncio.Future[Depart] = asyncio.get_running_loop().create_future()
        self._workforce = Workforce(
            settings,
            process.settings.data_dir,
            CodeArchive(process.bus, process.settings.pool, process.settings.data_dir),
            make_launcher=make_launcher,
            note=self._note,
            depart=self._depart,
            log=process.log,
        )

    async def run(self) -> None:
        """Raises BadSettings if another executor took this node's name."""
        try:
            await self._workforce.open()
            hosting = asyncio.create_task(
                host_policy(
                    self._process,
                    executor_policy(self._offer),
                    act=self._workforce.act,
                    beside=self._beside,
                ),
                name="hosting",
            )
            try:
                await self._until_over(hosting)
            finally:
                await _cancelled(hosting)
        finally:
            await self._workforce.close()

    async def _until_over(self, hosting: "asyncio.Task[None]") -> None:
        over = {hosting, self._departed}
        try:
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if self._host is not None and self._host.state.membership is Membership.MEMBER:
                self._host.note(LeaveRequested())
                limit_s = self._offer.stop_grace_s + FAREWELL_S
                await asyncio.wait(over, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            raise
        if hosting.done():
            await hosting
        taken = f"EF_NODE_ID={self._offer.node_id!r}: another executor has joined under this name"
        raise BadSettings(problems=(taken,))

    async def _beside(self, host: Host[State]) -> None:
        self._host = host
        process = self._process
        heartbeat = Heartbeat(
            host, process.bus, process.settings.pool, process.clock, process.log, self._workforce
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._workforce.run(), name="workforce")
            tasks.create_task(heartbeat.run(), name="heartbeat")

    def _note(self, note: Note) -> None:
        assert self._host is not None, "a worker before its host"
        self._host.note(note)

    def _depart(self, departure: Depart) -> None:
        if not self._departed.done():
            self._departed.set_result(departure)


def _launcher(data_dir: Path, settings: ExecutorSettings, on_event: OnEvent) -> Launcher:
    return Launcher(
        data_dir=data_dir,
        node_id=settings.node_id,
        on_event=on_event,
        preload=settings.preload,
        device=settings.device,
        warm_workers=settings.warm_workers,
    )


def _offer(settings: ExecutorSettings) -> Offer:
    return Offer(
        node_id=settings.node_id,
        run_id=fresh_id(),
        num_gpus=settings.num_gpus,
        device=settings.device,
        advertise_host=settings.advertise_host,
        sockets=settings.sockets,
        rack=settings.rack,
        stop_grace_s=settings.stop_grace_s,
    )


@contextlib.contextmanager
def _only_executor(data_dir: Path, node_id: str) -> Iterator[None]:
    """Hold the node's name on this machine. Raises BadSettings if a living executor has it."""
    folder = data_dir / "services"
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / f"executor-{node_id}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = f"EF_NODE_ID={node_id!r}: an executor of this name runs here already"
            raise BadSettings(problems=(problem,)) from None
        yield
    finally:
        os.close(lock)


async def _cancelled(task: "asyncio.Task[Any]") -> None:
    """Cancel it and wait for its end; what it raised is whoever awaits it to know."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
