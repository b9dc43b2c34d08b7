"""Answers tenants about their own running workers here: stacks (`eflow stack`), and commands (`eflow exec`).

The subject of a request names its tenant, and NATS permits a tenant's own only. A node listens to tenants that have
workers here, so that no other tenant can keep it busy. A command is in the ledger before it begins (docs/adr/0105).
"""

import asyncio
import contextlib
import os
import shlex
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, get_args

from elasticflow.services.executor.processes.command_session import CommandFiles, CommandSession, CommandStart, ready
from elasticflow.services.executor.processes.launcher import WorkerHandle
from elasticflow.services.executor.processes.rate_limit import TokenBucket
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.messages import codec, reach, subjects
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.events import WorkerEntered
from elasticflow.shared.messages.job_environment import without_secrets
from elasticflow.shared.messages.reach import (
    MAX_COMMAND_LENGTH,
    STACKS_BYTES,
    AllFound,
    BeginCommand,
    CommandBegan,
    CommandRefused,
    FindWorkers,
    FoundWorker,
    FromExecutor,
    ToExecutor,
)
from elasticflow.shared.messages.worker_protocol.to_worker import STACKS_SIGNAL, RunCommand, ShowStacks
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.process.clock import Clock, fresh_id
from elasticflow.shared.runtime.process.files import open_regular_file

MOST_COMMANDS = 8  # of one tenant at once
MOST_AT_ONCE, REQUESTS_PER_S = 30.0, 1 / 30  # of one tenant: each command is kept in the ledger
_POLL_S = 0.25  # for tenants that come and go
_RECORD_TIMEOUT_S = 10.0
_STACKS_TIMEOUT_S, _SIGNALLED_S = 5.0, 1.0


class Workers(Protocol):
    """In production `manager.WorkerManager`."""

    @property
    def tenants(self) -> frozenset[str]: ...
    def workers_of(self, tenant: str, job_id: str) -> tuple[WorkerHandle, ...]: ...
    def starts_worker_of(self, tenant: str, job_id: str) -> bool: ...


class ReachedWorkers:
    """The answers of one node to all tenants."""

    def __init__(self, bus: Bus, pool: str, node_id: str, workers: Workers, clock: Clock, log: Any) -> None:
        self._bus, self._pool, self._node_id, self._workers = bus, pool, node_id, workers
        self._clock, self._log = clock, log

    async def run(self) -> None:
        """Answer until cancelled."""
        serving: dict[str, tuple[TenantAnswers, asyncio.Task[None]]] = {}
        try:
            while True:
                tenants = self._workers.tenants
                for tenant, (answers, task) in list(serving.items()):
                    if task.done() or (tenant not in tenants and not answers.has_commands):
                        del serving[tenant]
                        await _ended(task, self._log)
                for tenant in tenants - serving.keys():
                    answers = TenantAnswers(self._bus, self._pool, self._node_id, tenant, self._workers, self._clock)
                    task = asyncio.create_task(answers.run(self._log), name=f"reached workers of {tenant}")
                    serving[tenant] = answers, task
                await asyncio.sleep(_POLL_S)
        finally:
            for _, task in serving.values():
                await _ended(task, self._log)


async def _ended(task: "asyncio.Task[None]", log: Any) -> None:
    task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    if isinstance(result, Exception):
        log.warning("ReachFailed", error=f"{type(result).__name__}: {result}")


class TenantAnswers:
    """The answers of one node to one tenant."""

    def __init__(self, bus: Bus, pool: str, node_id: str, tenant: str, workers: Workers, clock: Clock) -> None:
        self._bus, self._pool, self._node_id, self._tenant = bus, pool, node_id, tenant
        self._workers, self._clock = workers, clock
        self._rate = TokenBucket(MOST_AT_ONCE, REQUESTS_PER_S, asyncio.get_running_loop().time)
        self._sessions: dict[str, CommandSession | None] = {}  # None: its command has not begun

    @property
    def has_commands(self) -> bool:
        return bool(self._sessions)

    async def run(self, log: Any) -> None:
        """Answer until cancelled; then end all commands."""
        subscription = await self._bus.subscribe(subjects.reach(self._tenant, self._pool, self._node_id))
        try:
            async with asyncio.TaskGroup() as tasks:
                async for message in subscription:
                    with contextlib.suppress(Undecodable):  # of another version, or no client of ours
                        self._take(reach.decode(message.data, *get_args(ToExecutor)), tasks, log)
        finally:
            await subscription.close()

    def _take(self, asked: ToExecutor, tasks: asyncio.TaskGroup, log: Any) -> None:
        match asked:
            case FindWorkers():
                tasks.create_task(self._logged(self._find(asked), log))
            case BeginCommand():
                if asked.session not in self._sessions:
                    tasks.create_task(self._logged(self._run(asked, log), log))
            case _:
                session = self._sessions.get(asked.session)
                if session is not None:
                    session.take(asked)

    async def _logged(self, work: Any, log: Any) -> None:
        """No failure of one answer ends the others."""
        try:
            await work
        except Exception as error:
            log.warning("ReachFailed", tenant=self._tenant, error=f"{type(error).__name__}: {error}")

    async def _answer(self, session: str, message: FromExecutor) -> None:
        subject = subjects.reached(self._tenant, self._pool, self._node_id, session)
        await self._bus.publish(subject, reach.encode(message))

    # -- workers and stacks ------------------------------------------------------------------------------

    async def _find(self, asked: FindWorkers) -> None:
        if asked.with_stacks and not self._rate.takes_one():
            return await self._answer(asked.session, CommandRefused(problem=self._too_many()))
        handles = self._workers.workers_of(self._tenant, asked.job_id)
        handles = tuple(each for each in handles if asked.rank in (None, each.assignment.rank))
        await asyncio.gather(*(self._found(asked, handle) for handle in handles))
        preparing = self._workers.starts_worker_of(self._tenant, asked.job_id)
        all_found = AllFound(node_id=self._node_id, num_workers=len(handles), preparing=preparing)
        return await self._answer(asked.session, all_found)

    async def _found(self, asked: FindWorkers, handle: WorkerHandle) -> None:
        assignment = handle.assignment
        stacks, problem = await stacks_of(handle) if asked.with_stacks else ("", "")
        found = FoundWorker(
            node_id=self._node_id,
            generation=assignment.plan.generation,
            rank=assignment.rank,
            pid=handle.pid,
            stacks=stacks,
            problem=problem,
        )
        await self._answer(asked.session, found)

    def _too_many(self) -> str:
        return f"tenant {self._tenant} has asked {self._node_id} too often; wait for {1 / REQUESTS_PER_S:.0f} s"

    # -- commands ----------------------------------------------------------------------------------------

    async def _run(self, order: BeginCommand, log: Any) -> None:
        self._sessions[order.session] = None
        try:
            problem, handle = self._problem(order), self._handle(order)
            if not problem and handle is not None:
                problem = await self._recorded(order, handle.assignment.secrets.values(), log)
                handle = self._handle(order)
            if not problem and handle is None:
                problem = self._gone(order)
            if problem or handle is None:
                return await self._answer(order.session, CommandRefused(problem=problem))
            return await self._run_beside(order, handle)
        finally:
            del self._sessions[order.session]

    def _problem(self, order: BeginCommand) -> str:
        """Why this command is not run; "" if it may be."""
        if self._handle(order) is None:
            return self._gone(order)
        if len(self._sessions) > MOST_COMMANDS:
            return f"{MOST_COMMANDS} commands of tenant {self._tenant} run on {self._node_id}: end one before"
        if len(shlex.join(order.command)) > MAX_COMMAND_LENGTH:
            return (
                f"the command is longer than {MAX_COMMAND_LENGTH:,} characters, which the ledger keeps: pass it on "
                "standard input, as in `eflow exec JOB -- sh < script.sh`"
            )
        return "" if self._rate.takes_one() else self._too_many()

    def _gone(self, order: BeginCommand) -> str:
        return (
            f"no worker of rank {order.rank} in generation {order.generation} of {order.job_id} runs on "
            f"{self._node_id} now; `eflow jobs {order.job_id}` shows where it runs"
        )

    def _handle(self, order: BeginCommand) -> WorkerHandle | None:
        wanted = order.generation, order.rank
        for handle in self._workers.workers_of(self._tenant, order.job_id):
            if (handle.assignment.plan.generation, handle.assignment.rank) == wanted:
                return handle
        return None

    async def _recorded(self, order: BeginCommand, secrets: Iterable[str], log: Any) -> str:
        """Write into the ledger who runs what, without values of the job's secrets; why that did not succeed, "" if it
        did."""
        event = WorkerEntered(
            job_id=order.job_id,
            generation=order.generation,
            rank=order.rank,
            node_id=self._node_id,
            tenant=self._tenant,
            user=order.user,
            command=without_secrets(shlex.join(order.command), secrets),
            at_s=self._clock.now_s(),
        )
        message_id = f"{type(event).__name__}-{fresh_id()}"  # the same command again is another event
        data = codec.encode(event, id=message_id, recorded_at_s=event.at_s)
        log.info("WorkerEntered", job_id=order.job_id, rank=order.rank, tenant=self._tenant, user=order.user)
        try:
            async with asyncio.timeout(_RECORD_TIMEOUT_S):
                subject = subjects.job(self._pool, order.job_id, self._node_id)
                await self._bus.append(subject, data, message_id=message_id)
        except (ElasticFlowError, TimeoutError) as error:
            return f"the ledger does not take its record, without which nothing is run: {error or 'no reply in time'}"
        return ""

    async def _run_beside(self, order: BeginCommand, handle: WorkerHandle) -> None:
        files = CommandFiles.open(order.terminal)
        with contextlib.ExitStack() as opened:
            opened.callback(files.close)
            kind = (order.terminal_kind or "dumb") if order.terminal else ""
            ours, theirs = socket.socketpair()
            opened.callback(ours.close)
            ours.setblocking(False)
            run = RunCommand(command=order.command, terminal_kind=kind)
            with theirs:
                was_sent = handle.process.channel.send_with_files(run, [*files.of_command, theirs.fileno()])
            files.close_those_of_command()
            if not was_sent:
                problem = f"the worker does not read its messages; `eflow stack {order.job_id}` shows where it is"
                return await self._answer(order.session, CommandRefused(problem=problem))

            async def answer(message: FromExecutor) -> None:
                await self._answer(order.session, message)

            start = CommandStart(order, files, ours, lambda: self._why_over(order, handle))
            session = self._sessions[order.session] = CommandSession(start, answer)
            await answer(CommandBegan(pid=handle.pid))
            return await session.run()

    def _why_over(self, order: BeginCommand, handle: WorkerHandle) -> str:
        """Why the command ends with its worker; "" while that runs."""
        if handle.process.exited.done():
            return "its worker has ended"
        if handle.assignment.plan.generation != order.generation:
            return f"generation {order.generation} has ended: its worker trains in another one"
        return ""


# --- stacks --------------------------------------------------------------------------------------------


async def stacks_of(handle: WorkerHandle) -> tuple[str, str]:
    """Where the threads of the worker are, and why that is not known, if it is not."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    try:
        was_sent = handle.process.channel.send_with_files(ShowStacks(), [writing])
    finally:
        os.close(writing)
    try:
        read = await _read_all(reading) if was_sent else None
    finally:
        os.close(reading)
    if read:
        return read.decode(errors="replace"), ""
    return await _stacks_by_signal(handle)


async def _read_all(file: int) -> bytes | None:
    """All of it up to its end; None if that does not come in time."""
    read, loop = bytearray(), asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_STACKS_TIMEOUT_S):
            while len(read) < STACKS_BYTES:
                await ready(loop.add_reader, loop.remove_reader, file)
                data = os.read(file, STACKS_BYTES - len(read))
                if not data:
                    break
                read += data
    except TimeoutError:
        return None
    return bytes(read)


async def _stacks_by_signal(handle: WorkerHandle) -> tuple[str, str]:
    """No thread of its interpreter can answer: a handler of the signal, which needs none, writes into the log."""
    log_file = handle.log_file
    before = await asyncio.to_thread(_read_log, log_file, 0, 0)
    try:
        os.kill(pid_of_worker(handle.pid), STACKS_SIGNAL)
    except OSError as error:
        return "", f"the worker does not answer, and gets no signal: {error.strerror}"
    await asyncio.sleep(_SIGNALLED_S)
    _, text = await asyncio.to_thread(_read_log, log_file, before[0], STACKS_BYTES // 4)
    if "File " not in text:
        return "", "the worker does not answer, and its log has no stacks: a system call does not return"
    return text, ""


def pid_of_worker(pid: int) -> int:
    """Of the process that the executor knows, or of its first child, if it is only the first one of its namespaces.
    Raises OSError."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, pids = line.partition(":")
        if name == "NSpid" and len(pids.split()) > 1:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return int(children[0]) if children else pid
    return pid


def _read_log(log_file: Path, offset: int, num_bytes: int) -> tuple[int, str]:
    """The size of the file, and its text from the offset on."""
    with contextlib.suppress(OSError), open_regular_file(log_file) as file:
        return os.fstat(file).st_size, os.pread(file, num_bytes, offset).decode(errors="replace")
    return 0, ""
