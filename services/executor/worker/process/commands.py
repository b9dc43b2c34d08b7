"""What an executor asks of a running worker for its user: where its threads are, and commands beside it.

A command is a child of the worker, started as users' code would start it. So it has the worker's namespaces, limits,
control group, environment, devices and folder, and can do nothing that the job's own code cannot do. It ends with the
worker as all that the worker has started (docs/adr/0105).
"""

import contextlib
import faulthandler
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial

from elasticflow.shared.messages.worker_protocol.frames import encode_frame
from elasticflow.shared.messages.worker_protocol.to_worker import STACKS_SIGNAL, CommandResult, RunCommand

# --- stacks --------------------------------------------------------------------------------------------

_LOG = 2  # standard error is the job's log
_MAX_STACKS_BYTES = 200 * 1024
_THREAD = re.compile(r"^(Thread|Current thread) 0x([0-9a-f]+)", re.MULTILINE)


def show_stacks_on_signal() -> None:
    """Let the signal write the stacks into the log, also while a library holds the lock of the interpreter."""
    faulthandler.register(STACKS_SIGNAL, file=_LOG, all_threads=True)


def write_stacks_to_log(reason: str) -> None:
    """Where each thread of this worker is, also those that wait in a library, without their help."""
    with contextlib.suppress(OSError):  # a full disk
        os.write(_LOG, f"eflow: {reason}; the threads of this worker, newest calls first:\n".encode())
    faulthandler.dump_traceback(_LOG, all_threads=True)


def write_stacks(files: list[int]) -> None:
    """Write them into the log, and into this file, which is closed then."""
    _in_thread("stacks", _write_stacks, files)


def _write_stacks(files: list[int]) -> None:
    write_stacks_to_log("eflow stack has asked")
    with contextlib.suppress(OSError), os.fdopen(files[0], "wb") as file:
        file.write(_stacks().encode(errors="replace"))


def _stacks() -> str:
    """With the names of the threads. Raises OSError."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read(_MAX_STACKS_BYTES).decode(errors="replace")

    def named(found: re.Match[str]) -> str:
        name = names.get(int(found[2], 16))
        return f'{found[0]} "{name}"' if name else found[0]

    return _THREAD.sub(named, text)


def _in_thread(name: str, work: Callable[[list[int]], None], files: list[int]) -> None:
    """In a thread of its own: the one that reads the channel also ends the worker when its lease is over."""
    try:
        threading.Thread(target=work, args=(files,), name=name, daemon=True).start()
    except RuntimeError:  # it has as many threads as it may have; the executor sees the ends of the files
        for file in files:
            os.close(file)


# --- commands ------------------------------------------------------------------------------------------

_END_POLL_S = 0.2
# A child cannot take its terminal between fork and exec: that needs code in a process that has threads.
_WITH_TERMINAL = (
    "import fcntl,os,sys,termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "try: os.execvp(sys.argv[1], sys.argv[1:])\n"
    "except OSError as error: sys.exit(f'{sys.argv[1]}: {error.strerror}')"
)


def run_command(order: RunCommand, files: list[int]) -> None:
    """Start it, and return. files: its standard input, output and error, and a socket, which belong to it."""
    _in_thread("command", partial(_run, order), files)


def _run(order: RunCommand, files: list[int]) -> None:
    *standard, control = files
    with socket.socket(fileno=control) as executor:
        try:
            process = _started(order, standard)
        except (OSError, ValueError) as error:
            result = CommandResult(error=f"{order.command[0]}: {getattr(error, 'strerror', None) or error}")
        else:
            result = CommandResult(status=_ended(process, executor))
        finally:
            for file in standard:
                os.close(file)
        with contextlib.suppress(OSError):  # the executor is gone
            executor.sendall(encode_frame(result))


def _started(order: RunCommand, standard: list[int]) -> "subprocess.Popen[bytes]":
    """Raises OSError, ValueError."""
    environment, command = dict(os.environ), order.command
    if order.terminal_kind:
        environment["TERM"] = order.terminal_kind
        command = (sys.executable, "-I", "-S", "-c", _WITH_TERMINAL, *command)
    return subprocess.Popen(
        command,
        stdin=standard[0],
        stdout=standard[1],
        stderr=standard[2],
        env=environment,
        start_new_session=True,  # so that a signal reaches it and its children only
    )


def _ended(process: "subprocess.Popen[bytes]", executor: socket.socket) -> int:
    """Its status. The end of the file kills it, and what is in its process group."""
    watched = select.poll()
    watched.register(executor, select.POLLIN | select.POLLHUP)
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_END_POLL_S)
        if watched.poll(0):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            return process.wait()
