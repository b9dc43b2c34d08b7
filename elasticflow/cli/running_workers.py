"""`eflow stack` and `eflow exec`: where the threads of running workers are, and commands beside one of them."""

import asyncio
import contextlib
import getpass
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Annotated

import typer

from elasticflow.cli import completion
from elasticflow.cli.command_options import Json, OwnerOptions, owner_in_words, run
from elasticflow.cli.exit_codes import NEGATIVE
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.terminal_output import note, print_json, say_line
from elasticflow.client.client import Client
from elasticflow.client.running_workers import FoundWorkers, RunningWorkers, no_worker
from elasticflow.history.formatting import ended_in_words
from elasticflow.shared.messages.reach import PART_BYTES, BeginCommand, CommandEnded, FoundWorker, TerminalSize
from elasticflow.shared.runtime.process.clock import fresh_id

_OLD_KEYS = "it may run an older version; a key that an older version made needs a new accounts.conf (`eflow keys`)"
Rank = Annotated[int | None, typer.Option("--rank", min=0, metavar="N", help="Only this worker.", show_default=False)]


async def _live(client: Client, job_id: str) -> RunningWorkers:
    """Raises UnknownJob, NotThere."""
    job = await client.job(job_id)
    if job.tenant != client.tenant:
        raise no_worker(f"{job_id}: {owner_in_words('job', job.tenant)}")
    if not job.live:
        raise no_worker(f"{job_id} {ended_in_words(job)}; `eflow logs {job_id}` shows what it has written")
    if not job.nodes:
        raise no_worker(f"{job_id} has no GPU now; `eflow explain {job_id}` says why")
    return client.running_workers(job)


def _why_none(job_id: str, rank: int | None, found: FoundWorkers) -> str:
    which = f"worker of rank {rank}" if rank is not None else "worker"
    silent = f"{', '.join(found.silent)} {'does' if len(found.silent) == 1 else 'do'} not answer"
    if found.refused:
        return found.refused[0]
    if found.silent:
        return f"no {which} of {job_id} is known: {silent}; {_OLD_KEYS}"
    if found.preparing:
        return f"no {which} of {job_id} runs so far: it starts on {', '.join(found.preparing)}; try again"
    return f"no {which} of {job_id} runs now; `eflow jobs {job_id}` shows its GPUs"


@takes_tables
def stack(
    job_id: Annotated[str, typer.Argument(metavar="JOB", autocompletion=completion.live_jobs)],
    rank: Rank = None,
    where: OwnerOptions = OwnerOptions(),
    as_json: Json = False,
) -> None:
    """Show where each thread of a running job's workers is, newest calls first.

    The workers train on meanwhile, and have the same in their logs. A worker
    that does not answer, because a library holds Python's lock, gets a signal
    that needs no answer.

    \b
    Examples:
      eflow stack digits-3f9a1c
      eflow stack digits-3f9a1c --rank 3
      eflow stack digits-3f9a1c --json | jq -r '.[].stacks'
    """

    async def ask(client: Client) -> FoundWorkers:
        return await (await _live(client, job_id)).find(rank, with_stacks=True)

    found = run(ask, where)
    if not found.workers:
        raise no_worker(_why_none(job_id, rank, found))
    if as_json:
        print_json(found.workers)
    else:
        for worker in found.workers:
            _show_stacks(worker)
    for problem in found.refused:
        note(f"eflow: {problem}")
    if found.silent:
        note(f"eflow: no answer from {', '.join(found.silent)}")
    raise typer.Exit(NEGATIVE if found.silent or found.refused else 0)


def _show_stacks(worker: FoundWorker) -> None:
    place = f"generation {worker.generation}, process {worker.pid} on {worker.node_id}"
    say_line(f"rank {worker.rank}  {place}", "bold")
    say_line(worker.stacks.rstrip("\n") if worker.stacks else f"  {worker.problem}")


@takes_tables
def exec_(
    job_id: Annotated[str, typer.Argument(metavar="JOB", autocompletion=completion.live_jobs)],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND [ARGUMENT ...]", show_default=False)],
    rank: Annotated[int, typer.Option("--rank", min=0, metavar="N", help="Beside this worker.")] = 0,
    where: OwnerOptions = OwnerOptions(),
) -> None:
    """Run a command beside a worker of a running job: on its node, with its
    rights, limits, environment and folder.

    From a terminal it has a terminal; else its input and output are pipes. It
    ends with the worker's generation, so at the next resize or move of the job.
    The ledger keeps who ran what. The exit code is that of the command.

    \b
    Examples:
      eflow exec digits-3f9a1c -- nvidia-smi
      eflow exec digits-3f9a1c --rank 3 -- bash
      eflow exec digits-3f9a1c -- python - < look.py
    """
    size = _terminal_size()

    async def ask(client: Client) -> CommandEnded:
        workers = await _live(client, job_id)
        found = await workers.find(rank)
        if not found.workers:
            raise no_worker(_why_none(job_id, rank, found))
        worker = found.workers[-1]
        order = BeginCommand(
            session=fresh_id(),
            job_id=job_id,
            generation=worker.generation,
            rank=worker.rank,
            command=tuple(command),
            user=_user(),
            terminal=size,
            terminal_kind=os.environ.get("TERM", "") if size is not None else "",
        )
        with _raw_terminal() if size is not None else contextlib.nullcontext():
            return await workers.run(worker, order, _StandardInput(), _show_output)

    ended = run(ask, where)
    if ended.reason:
        note(f"eflow: {shlex.join(command)}: {ended.reason}")
    if ended.code is not None:
        raise typer.Exit(ended.code)
    raise typer.Exit(NEGATIVE if ended.signal is None else 128 + ended.signal)


def _user() -> str:
    with contextlib.suppress(OSError, KeyError):
        return f"{getpass.getuser()}@{socket.gethostname()}"[:200]
    return ""


def _show_output(data: bytes, is_error: bool) -> None:
    """As it is: what a terminal's programs write commands the terminal."""
    stream = sys.stderr if is_error else sys.stdout
    stream.flush()
    stream.buffer.write(data)
    stream.buffer.flush()


# --- terminal ------------------------------------------------------------------------------------------


def _terminal_size() -> TerminalSize | None:
    """None if a program reads the output, or writes the input."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    return _size()


def _size() -> TerminalSize:
    columns, rows = os.get_terminal_size(sys.stdout.fileno())
    return TerminalSize(rows=min(max(rows, 1), 10_000), columns=min(max(columns, 1), 10_000))


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Each key, Ctrl-C too, goes to the command."""
    file = sys.stdin.fileno()
    import termios  # absent on Windows, which has no terminals to set
    import tty

    before = termios.tcgetattr(file)
    tty.setraw(file, termios.TCSADRAIN)  # what was typed before is for the command
    try:
        yield
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


class _StandardInput:
    """The input of this process, read as the command takes it."""

    async def parts(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        read: asyncio.Queue[bytes] = asyncio.Queue()
        wanted = threading.Semaphore(0)

        def read_on() -> None:
            """In a thread that nobody awaits: it may wait for a key for ever."""
            while True:
                wanted.acquire()
                try:
                    data = os.read(0, PART_BYTES)
                except OSError:
                    data = b""
                try:
                    loop.call_soon_threadsafe(read.put_nowait, data)
                except RuntimeError:  # the command has ended
                    return
                if not data:
                    return

        threading.Thread(target=read_on, name="standard input", daemon=True).start()
        while True:
            wanted.release()
            if not (data := await read.get()):
                return
            yield data

    async def sizes(self) -> AsyncIterator[TerminalSize]:
        if not sys.stdout.isatty():
            return
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, changed.set)
        try:
            while True:
                await changed.wait()
                changed.clear()
                yield _size()
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
