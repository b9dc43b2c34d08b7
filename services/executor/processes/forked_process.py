"""A process that the fork server has forked, and the executor's end of its channel."""

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from elasticflow.services.executor.processes.fork_server_client import Exited, ForkServer
from elasticflow.services.executor.processes.process_channel import ProcessChannel
from elasticflow.shared.messages.worker_protocol.frames import BrokenChannel, FrameReader
from elasticflow.shared.runtime.process.process_termination import kill_process_group

_LAST_MESSAGES_TIMEOUT_S = 1.0  # for a channel that another process holds open after this one has ended

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForkedProcess:
    """The leader of its own process group. Its first message makes it a worker or a runner."""

    pid: int
    exited: "asyncio.Future[Exited]"
    channel: ProcessChannel

    def kill(self) -> None:
        """SIGKILL to the process and its descendants. No effect if they are gone."""
        if not self.exited.done():
            kill_process_group(self.pid)

    async def follow(
        self, frames: FrameReader[Message], on_message: Callable[[Message], None], on_broken: Callable[[str], None]
    ) -> Exited:
        """Pass on its messages until it has ended and the last ones are read.

        on_message: may raise BrokenChannel if the message is not allowed now.
        on_broken: called with the reason if nothing after its last message can be used; the process is then killed.
        """
        listening = asyncio.create_task(self._listen(frames, on_message, on_broken))
        try:
            exited = await asyncio.shield(self.exited)
            await asyncio.wait({listening}, timeout=_LAST_MESSAGES_TIMEOUT_S)
        finally:
            listening.cancel()
            await asyncio.wait({listening})
            self.channel.close()
        return exited

    async def _listen(
        self, frames: FrameReader[Message], on_message: Callable[[Message], None], on_broken: Callable[[str], None]
    ) -> None:
        try:
            while data := await self.channel.receive():
                for message in frames.feed(data):
                    on_message(message)
            await asyncio.wait({self.exited}, timeout=_LAST_MESSAGES_TIMEOUT_S)
            if not self.exited.done():
                raise BrokenChannel("it has closed its channel, but runs on")
        except Exception as error:  # what users' code sends ends its own process, and no task of the executor
            on_broken(str(error) if isinstance(error, BrokenChannel) else f"{type(error).__name__}: {error}")
            self.kill()


async def fork_process(server: ForkServer) -> ForkedProcess:
    """A new process with its channel. Raises EOFError, OSError."""
    ours, theirs = socket.socketpair()
    with theirs, contextlib.ExitStack() as on_failure:
        on_failure.callback(ours.close)
        pid, exited = await server.fork(theirs)
        on_failure.pop_all()
    return ForkedProcess(pid=pid, exited=exited, channel=ProcessChannel(ours))
