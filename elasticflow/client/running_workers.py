"""What a client asks the nodes of a running job: where its workers are, their stacks, and commands beside them."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, get_args

from elasticflow.errors import NotThere
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages import reach, subjects
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.reach import (
    KEEP_EVERY_S,
    PART_BYTES,
    PARTS_ON_THE_WAY,
    SILENT_AFTER_S,
    AllFound,
    BeginCommand,
    CommandBegan,
    CommandEnded,
    CommandOutput,
    CommandRefused,
    EndCommand,
    FindWorkers,
    FoundWorker,
    FromExecutor,
    ResizeTerminal,
    SendInput,
    TakenInput,
    TakeOutput,
    TerminalSize,
    ToExecutor,
)
from elasticflow.shared.runtime.bus.contract import Bus, Subscription
from elasticflow.shared.runtime.process.clock import fresh_id
from elasticflow.shared.state.job import Job

_ASK_AGAIN_S = 1.0  # a node listens to a tenant some time after its first worker has begun to start
_WORKERS_TIMEOUT_S, _STACKS_TIMEOUT_S = 6.0, 15.0


def no_worker(why: str) -> NotThere:
    return NotThere("no_worker", why)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundWorkers:
    """workers: by generation and rank. silent: nodes that have not answered. preparing: nodes on which one starts.
    refused: why a node tells nothing."""

    workers: tuple[FoundWorker, ...]
    silent: tuple[str, ...] = ()
    preparing: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


class CommandInput(Protocol):
    """Where the input of a command comes from."""

    def parts(self) -> AsyncIterator[bytes]:
        """Each at most PART_BYTES. It ends with the input."""
        ...

    def sizes(self) -> AsyncIterator[TerminalSize]:
        """Of the terminal, each time that it has changed; without end."""
        ...


class RunningWorkers:
    """The workers of one live job."""

    def __init__(self, bus: Bus, pool: str, tenant: str, job: Job) -> None:
        self._bus, self._pool, self._tenant, self._job = bus, pool, tenant, job

    async def find(self, rank: int | None = None, *, with_stacks: bool = False) -> FoundWorkers:
        """rank: of the only one that is meant. with_stacks: and where each of their threads is. Raises Unavailable."""
        asked = FindWorkers(session=fresh_id(), job_id=self._job.job_id, rank=rank, with_stacks=with_stacks)
        answers = await asyncio.gather(*(self._ask(node_id, asked) for node_id in self._job.nodes))
        told = dict(zip(self._job.nodes, answers, strict=True))
        everything = [message for answer in answers for message in answer or ()]
        workers = [message for message in everything if isinstance(message, FoundWorker)]
        ends = [message for message in everything if isinstance(message, AllFound)]
        return FoundWorkers(
            workers=tuple(sorted(workers, key=lambda worker: (worker.generation, worker.rank))),
            silent=tuple(node_id for node_id, answer in told.items() if answer is None),
            preparing=tuple(end.node_id for end in ends if end.preparing),
            refused=tuple(message.problem for message in everything if isinstance(message, CommandRefused)),
        )

    async def _ask(self, node_id: str, asked: FindWorkers) -> list[FromExecutor] | None:
        """All that this node answers; None if it does not in time."""
        timeout_s = _STACKS_TIMEOUT_S if asked.with_stacks else _WORKERS_TIMEOUT_S
        async with self._answers(node_id, asked.session) as answers:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    return await self._all_answers(node_id, asked, answers)
        return None

    async def _all_answers(
        self, node_id: str, asked: FindWorkers, answers: "asyncio.Queue[FromExecutor]"
    ) -> list[FromExecutor]:
        found: list[FromExecutor] = []
        await self._send(node_id, asked)
        repeated = not asked.with_stacks
        while True:
            try:
                message = await asyncio.wait_for(answers.get(), _ASK_AGAIN_S)
            except TimeoutError:
                if not found and repeated:
                    await self._send(node_id, asked)
                continue
            found.append(message)
            if isinstance(message, CommandRefused):
                return found
            if isinstance(message, AllFound) and len(found) > message.num_workers:
                return found

    async def run(
        self, worker: FoundWorker, order: BeginCommand, given: CommandInput, show: Callable[[bytes, bool], None]
    ) -> CommandEnded:
        """Run the command, and return once it has ended. show: gets each part of the output, and if it is an error.

        Raises NotThere, CommandLost, Unavailable. If this is cancelled, the command is killed.
        """
        async with self._answers(worker.node_id, order.session) as answers:
            await self._send(worker.node_id, order)
            began = await _next(answers, worker.node_id)
            if isinstance(began, CommandRefused):
                raise no_worker(f"not run: {began.problem}")
            if not isinstance(began, CommandBegan):
                raise CommandLost(worker.node_id, f"it answers with {type(began).__name__}")
            running = _RunningCommand(order.session, answers, show, lambda said: self._send(worker.node_id, said))
            try:
                return await running.until_ended(worker.node_id, given)
            finally:
                with contextlib.suppress(Retry):
                    await self._send(worker.node_id, EndCommand(session=order.session))

    async def _send(self, node_id: str, message: ToExecutor) -> None:
        await self._bus.publish(subjects.reach(self._tenant, self._pool, node_id), reach.encode(message))

    @contextlib.asynccontextmanager
    async def _answers(self, node_id: str, session: str) -> "AsyncGenerator[asyncio.Queue[FromExecutor]]":
        """What this node answers to this session. Raises NotPermitted."""
        subscription = await self._bus.subscribe(subjects.reached(self._tenant, self._pool, node_id, session))
        answers: asyncio.Queue[FromExecutor] = asyncio.Queue()
        reading = asyncio.create_task(_read(subscription, answers))
        try:
            yield answers
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await subscription.close()


async def _read(subscription: Subscription, answers: "asyncio.Queue[FromExecutor]") -> None:
    async for message in subscription:
        with contextlib.suppress(Undecodable):  # of a newer node
            answers.put_nowait(reach.decode(message.data, *get_args(FromExecutor)))


async def _next(answers: "asyncio.Queue[FromExecutor]", node_id: str) -> FromExecutor:
    try:
        return await asyncio.wait_for(answers.get(), SILENT_AFTER_S)
    except TimeoutError:
        raise CommandLost(node_id, f"it has said nothing for {SILENT_AFTER_S:.0f} s") from None


@dataclass(eq=False)
class CommandLost(Retry):
    """The command may run for some seconds more; its node ends it without its client."""

    node_id: str
    reason: str

    MESSAGE: ClassVar[str] = "the connection of the command with node {node_id} is lost: {reason}"


class _RunningCommand:
    """The client's side of one command."""

    def __init__(
        self,
        session: str,
        answers: "asyncio.Queue[FromExecutor]",
        show: Callable[[bytes, bool], None],
        send: "Callable[[ToExecutor], Awaitable[None]]",
    ) -> None:
        self._session, self._answers, self._show, self._send = session, answers, show, send
        self._num_outputs = self._num_inputs = self._num_taken_inputs = 0
        self._input_taken = asyncio.Event()

    async def until_ended(self, node_id: str, given: CommandInput) -> CommandEnded:
        tasks = [
            asyncio.create_task(work) for work in (self._send_input(given), self._send_sizes(given), self._stay_there())
        ]
        try:
            while True:
                message = await _next(self._answers, node_id)
                if (ended := await self._took(message, node_id)) is not None:
                    return ended
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _took(self, message: FromExecutor, node_id: str) -> CommandEnded | None:
        match message:
            case CommandOutput(number=number, data=data, is_error=is_error):
                self._num_outputs += 1
                if number != self._num_outputs:
                    raise CommandLost(node_id, "a part of its output was lost on the way")
                await asyncio.to_thread(self._show, data, is_error)  # a pager may take its time
                await self._send(TakeOutput(session=self._session, number=number))
            case TakenInput(number=number):
                self._num_taken_inputs = max(self._num_taken_inputs, number)
                self._input_taken.set()
            case CommandEnded(num_outputs=num_outputs):
                if num_outputs != self._num_outputs:
                    return replace(message, reason=message.reason or "a part of its output was lost on the way")
                return message
            case _:
                pass
        return None

    async def _send_input(self, given: CommandInput) -> None:
        async for data in given.parts():
            for start in range(0, len(data), PART_BYTES):
                await self._send_part(data[start : start + PART_BYTES])
        await self._send_part(b"", is_last=True)

    async def _send_part(self, data: bytes, *, is_last: bool = False) -> None:
        while self._num_inputs - self._num_taken_inputs >= PARTS_ON_THE_WAY:
            self._input_taken.clear()
            await self._input_taken.wait()
        self._num_inputs += 1
        await self._send(SendInput(session=self._session, number=self._num_inputs, data=data, is_last=is_last))

    async def _send_sizes(self, given: CommandInput) -> None:
        async for size in given.sizes():
            await self._send(ResizeTerminal(session=self._session, size=size))

    async def _stay_there(self) -> None:
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            with contextlib.suppress(Retry):  # a server that is gone comes back, or the other side falls silent
                await self._send(TakeOutput(session=self._session, number=self._num_outputs))
