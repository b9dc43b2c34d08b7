"""The process that manages a training in tasks: its start, its messages and its end.

The process imports torch and the engine of the workers, which the client does not.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args

from elasticflow.shared.messages.worker_protocol.frames import BrokenChannel, FrameReader, encode_frame
from elasticflow.shared.messages.worker_protocol.from_worker import FromWorker
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, StopAtBoundary, WriteLog
from elasticflow.shared.messages.worker_protocol.training_tasks import FromManager
from elasticflow.shared.runtime.process.run_module import module_command

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
        """Until the process ends."""
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
        """After those that it has sent. Its processes that read data may survive it, and hold the channel open."""
        await self._process.wait()
        self._channel.shutdown(socket.SHUT_RD)

    async def _send(self, message: WriteLog | Assignment | StopAtBoundary) -> None:
        await asyncio.get_running_loop().sock_sendall(self._channel, encode_frame(message))

    async def _receive(self) -> bytes:
        try:
            return await asyncio.get_running_loop().sock_recv(self._channel, _READ_BYTES)
        except OSError:
            return b""
