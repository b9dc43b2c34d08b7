"""One command beside a worker: its files, and what goes between them and the client that waits for it.

Input and output go in numbered parts, of which only a few are on the way: a client that reads slowly slows the command,
and takes no memory here.
"""

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from elasticflow.shared.messages.reach import (
    KEEP_EVERY_S,
    PART_BYTES,
    PARTS_ON_THE_WAY,
    SILENT_AFTER_S,
    BeginCommand,
    CommandEnded,
    CommandOutput,
    EndCommand,
    FromExecutor,
    ResizeTerminal,
    SendInput,
    TakenInput,
    TakeOutput,
    TerminalSize,
    ToExecutor,
)
from elasticflow.shared.messages.worker_protocol.frames import BrokenChannel, FrameReader
from elasticflow.shared.messages.worker_protocol.to_worker import CommandResult

_QUIET_S = 1.0  # after the end of a command: then what it has left open says no more
_RESULT_TIMEOUT_S = 5.0  # for a worker that must kill the command
_END_OF_INPUT = b"\x04"  # as a terminal's user types it

# --- files ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CommandFiles:
    """Descriptors. of_command: its standard input, output and error. outputs: where they are read here. A terminal is
    one file for all."""

    of_command: list[int]
    input: int | None
    outputs: list[int]
    is_terminal: bool

    @classmethod
    def open(cls, terminal: TerminalSize | None) -> "CommandFiles":
        """Raises OSError."""
        if terminal is not None:
            ours, theirs = os.openpty()
            files = cls([theirs] * 3, ours, [ours], is_terminal=True)
            files.resize(terminal)
        else:
            pairs = [os.pipe() for _ in range(3)]
            files = cls([pairs[0][0], pairs[1][1], pairs[2][1]], pairs[0][1], [pairs[1][0], pairs[2][0]], False)
        for file in files._ours:
            os.set_blocking(file, False)
        return files

    def resize(self, size: TerminalSize) -> None:
        if self.is_terminal:
            fcntl.ioctl(self.outputs[0], termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))

    def close_those_of_command(self) -> None:
        _close(self.of_command)
        self.of_command = []

    def close_input(self) -> None:
        if self.input is not None and not self.is_terminal:
            os.close(self.input)
            self.input = None

    def close(self) -> None:
        """Idempotent."""
        self.close_those_of_command()
        _close(self._ours)
        self.input, self.outputs = None, []

    @property
    def _ours(self) -> list[int]:
        return [*self.outputs, *([] if self.input is None else [self.input])]


def _close(files: list[int]) -> None:
    for file in set(files):
        os.close(file)


# --- session -------------------------------------------------------------------------------------------


class CommandStart(NamedTuple):
    """control: the socket on which the worker tells the result. why_over: why the command must end now; "": it need
    not."""

    order: BeginCommand
    files: CommandFiles
    control: socket.socket
    why_over: Callable[[], str]


class CommandSession:
    """answer: sends a message to the client; raises ElasticFlowError if it cannot."""

    def __init__(self, start: CommandStart, answer: Callable[[FromExecutor], Awaitable[None]]) -> None:
        self._start, self._answer = start, answer
        self._loop = asyncio.get_running_loop()
        self._heard_at_s = self._loop.time()
        self._inputs: asyncio.Queue[SendInput] = asyncio.Queue()
        self._num_inputs = self._num_taken_inputs = 0
        self._num_outputs = self._num_taken = 0
        self._reads = 0  # that have found something
        self._taken = asyncio.Event()
        self._sending = asyncio.Lock()
        self._over: asyncio.Future[str] = self._loop.create_future()  # why the command must end

    def take(self, message: ToExecutor) -> None:
        """What the client says."""
        self._heard_at_s = self._loop.time()
        match message:
            case SendInput(number=number):
                self._num_inputs += 1
                if number != self._num_inputs or self._inputs.qsize() >= 2 * PARTS_ON_THE_WAY:
                    self._end("a part of its input was lost on the way")
                else:
                    self._inputs.put_nowait(message)
            case TakeOutput(number=number):
                self._num_taken = max(self._num_taken, number)
                self._taken.set()
            case ResizeTerminal(size=size):
                self._start.files.resize(size)
            case EndCommand():
                self._end("its client has ended")
            case _:
                pass

    async def run(self) -> None:
        """Return once the command has ended, and all is told."""
        files = self._start.files
        outputs = [asyncio.create_task(self._send_output(file)) for file in files.outputs]
        others = [asyncio.create_task(self._write_input()), asyncio.create_task(self._watch())]
        result = asyncio.create_task(self._result())
        ended = CommandEnded(num_outputs=0, reason="the executor ends")
        try:
            await asyncio.wait({result, self._over}, return_when=asyncio.FIRST_COMPLETED)
            reason = self._over.result() if self._over.done() else ""
            if reason and not result.done():
                self._start.control.shutdown(socket.SHUT_WR)  # the worker then kills it
                await asyncio.wait({result}, timeout=_RESULT_TIMEOUT_S)
            await self._drain(outputs)
            told = result.result() if result.done() else None
            ended = _ended(told, reason or self._start.why_over())
        finally:
            tasks = [*outputs, *others, result]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(Exception):  # the client hears nothing more, and knows that
                await self._answer(replace(ended, num_outputs=self._num_outputs))

    def _end(self, reason: str) -> None:
        if not self._over.done():
            self._over.set_result(reason)

    async def _result(self) -> CommandResult | None:
        """None if the worker ends before it has told one."""
        frames = FrameReader(CommandResult)
        with contextlib.suppress(OSError, BrokenChannel):
            while data := await self._loop.sock_recv(self._start.control, 65_536):
                for message in frames.feed(data):
                    return message
        return None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            if why := self._start.why_over():
                self._end(why)
            if self._loop.time() - self._heard_at_s > SILENT_AFTER_S:
                self._end(f"its client was silent for {SILENT_AFTER_S:.0f} s")
            try:
                await self._answer(TakenInput(number=self._num_taken_inputs))
            except Exception as error:
                self._end(f"its client cannot be reached: {error}")

    # -- output ------------------------------------------------------------------------------------------

    async def _send_output(self, file: int) -> None:
        """Up to the end of the file."""
        is_error = len(self._start.files.outputs) > 1 and file == self._start.files.outputs[1]
        while data := await self._read(file):
            self._reads += 1
            async with self._sending:
                while self._num_outputs - self._num_taken >= PARTS_ON_THE_WAY:
                    self._taken.clear()
                    await self._taken.wait()
                self._num_outputs += 1
                try:
                    await self._answer(CommandOutput(number=self._num_outputs, data=data, is_error=is_error))
                except Exception as error:
                    return self._end(f"its client cannot be reached: {error}")
        return None

    async def _read(self, file: int) -> bytes:
        await ready(self._loop.add_reader, self._loop.remove_reader, file)
        try:
            return os.read(file, PART_BYTES)
        except BlockingIOError:
            return await self._read(file)
        except OSError:  # of a terminal that no process has open any more
            return b""

    async def _drain(self, outputs: "list[asyncio.Task[None]]") -> None:
        """Send what the command has written. A process that it has left may keep the files open."""
        while True:
            reads = self._reads
            _, waiting = await asyncio.wait(outputs, timeout=_QUIET_S)
            is_blocked = self._num_outputs - self._num_taken >= PARTS_ON_THE_WAY
            if not waiting or (reads == self._reads and not is_blocked) or self._over.done():
                return

    # -- input -------------------------------------------------------------------------------------------

    async def _write_input(self) -> None:
        files = self._start.files
        while True:
            part = await self._inputs.get()
            data = part.data + (_END_OF_INPUT if part.is_last and files.is_terminal else b"")
            while data and files.input is not None:
                try:
                    data = data[os.write(files.input, data) :]
                except BlockingIOError:
                    await ready(self._loop.add_writer, self._loop.remove_writer, files.input)
                except OSError:  # the command reads no more
                    data = b""
            if part.is_last:
                files.close_input()
            self._num_taken_inputs = part.number
            with contextlib.suppress(Exception):  # `_watch` repeats it
                await self._answer(TakenInput(number=part.number))


async def ready(add: Callable[..., object], remove: Callable[[int], object], file: int) -> None:
    """Return once the file can be read, or written. add, remove: the methods of the event loop for that."""
    may_go_on: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    add(file, lambda: None if may_go_on.done() else may_go_on.set_result(None))
    try:
        await may_go_on
    finally:
        remove(file)


def _ended(result: CommandResult | None, reason: str) -> CommandEnded:
    if result is None:
        return CommandEnded(num_outputs=0, reason=reason or "its worker has ended")
    if result.error:
        return CommandEnded(num_outputs=0, code=127, reason=f"not started: {result.error}"[:4_000])
    if result.status < 0:
        return CommandEnded(num_outputs=0, signal=min(-result.status, 255), reason=reason)
    return CommandEnded(num_outputs=0, code=min(result.status, 255), reason=reason)
