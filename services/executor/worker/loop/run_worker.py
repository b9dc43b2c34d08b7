"""A worker process from the fork to its exit code: channel, warm-up, training, report of an error."""

import contextlib
import ctypes
import gc
import os
import re
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NoReturn

from elasticflow.services.executor.worker.checkpoint.store import Superseded
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.loop import training_loop
from elasticflow.services.executor.worker.process.channel import Channel
from elasticflow.services.executor.worker.process.commands import show_stacks_on_signal
from elasticflow.services.executor.worker.process.cpu_slot_limits import job_memory_advice, limit_memory
from elasticflow.services.executor.worker.process.device import (
    DeviceLost,
    DeviceMemoryExceeded,
    DeviceUnusable,
    is_out_of_memory,
    use_one_heap,
    warm_up,
)
from elasticflow.services.executor.worker.process.exit_handlers import EXIT_HANDLERS, ON_THE_WAY_S
from elasticflow.services.executor.worker.process.users_code import enter_environment, without_own_secrets
from elasticflow.services.executor.worker.process.users_process import PROCESS, meaning_of
from elasticflow.shared.messages.worker_protocol.from_worker import ARTIFACT_VARIABLE, ExitCode, Failed
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, WarmUp
from elasticflow.shared.runtime.process.isolation.isolated_process import WorkerFolders
from elasticflow.shared.runtime.process.logs import log

# --- process title -------------------------------------------------------------------------------------
# The title of a worker in `ps` and `top`: the name of its job, in place of the command of the fork server.

_PR_SET_NAME = 15
_ARG_START, _ARG_END = 48 - 3, 49 - 3  # fields of /proc/self/stat, counted behind the name of the process


def set_process_title(title: str, name: str) -> None:
    """title: shown by `ps -f`, cut to the length of the command line before. name: shown by `top`, 15 bytes of it.

    Linux only; else, and where the kernel hides the addresses, no effect.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        if 0 < start < end:
            room = end - start
            ctypes.memmove(start, title.encode()[: room - 1].ljust(room, b"\0"), room)


# --- traceback text ------------------------------------------------------------------------------------
# Tracebacks as their readers want them: frames of the engine above and between those of users' code are folded.

_PACKAGE = Path(str(sys.modules["elasticflow"].__file__)).parent
_SERVICES = Path(__file__).parents[3]
_ENGINE_FOLDERS = (
    *(f"{folder}{os.sep}" for folder in (_PACKAGE, _SERVICES, _SERVICES.parent / "shared")),
    "<frozen runpy>",  # which starts scripts
)
_FRAME = re.compile(r'( *)File "(.*)", line \d+')


def folded(text: str) -> str:
    """The text of a traceback, in which several frames of the engine in a row are one line."""
    return "".join(_folded(text.splitlines(keepends=True)))


def _folded(lines: list[str]) -> Iterator[str]:
    for indent, entries in groupby(_entries(lines), key=_engine_indent):
        group = list(entries)
        if indent is None or len(group) < 2:
            yield from (line for entry in group for line in entry)
        else:
            yield f"{indent}… {len(group)} frames of elasticflow (eflow explain --traceback shows them)\n"


def _entries(lines: list[str]) -> Iterator[list[str]]:
    """Each frame with its source lines; each other line alone."""
    entry: list[str] = []
    for line in lines:
        belongs = bool(entry) and line.startswith(_indent(entry[0]) + "  ") and not _FRAME.match(line)
        if belongs:
            entry.append(line)
            continue
        if entry:
            yield entry
            entry = []
        if _FRAME.match(line):
            entry = [line]
        else:
            yield [line]
    if entry:
        yield entry


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" "))]


def _engine_indent(entry: list[str]) -> str | None:
    """The indent of a frame of the engine; None for anything else."""
    frame = _FRAME.match(entry[0])
    return frame[1] if frame is not None and frame[2].startswith(_ENGINE_FOLDERS) else None


# --- run worker ----------------------------------------------------------------------------------------

_MAX_TEXT = 16_000  # characters of an error or traceback that are sent; the log has all of it
_MAX_NOTES = 2_000  # after those of the error


def run_worker(sock: socket.socket, received: bytes, folders: WorkerFolders) -> NoReturn:
    """Wait for the assignment, train, and exit with an `ExitCode`. A warm worker prepares its device first.

    received: the bytes that were already read from the channel.
    """
    run_assignment(sock, received, training_loop.run, folders)


def run_assignment(
    sock: socket.socket,
    received: bytes,
    run: Callable[[Assignment, Channel, training_loop.RunInNewThread], None],
    folders: WorkerFolders | None = None,
) -> NoReturn:
    """Do what `run_worker` does, with another kind of training."""
    use_one_heap()
    channel = Channel(sock, received, folders)
    signal.signal(signal.SIGTERM, lambda *_: channel.request_stop())
    show_stacks_on_signal()
    # A forked reader process inherits connections, but not their threads: collecting one of them would crash it.
    os.register_at_fork(after_in_child=gc.freeze)

    def elsewhere(work: Callable[[], None]) -> None:
        threading.Thread(target=_end_with, args=(work, channel), name="training", daemon=True).start()

    _end_with(lambda: run(enter_environment(_limited(_assigned(channel))), channel, elsewhere), channel)


def _assigned(channel: Channel) -> Assignment:
    """The assignment, after any warm-up."""
    order = channel.receive_command()
    while isinstance(order, WarmUp):
        warm_up(order.device, order.gpu_index)
        order = channel.receive_command()
    set_process_title(f"eflow worker of {order.job_id}, rank {order.rank}", f"eflow {order.job_id}")
    PROCESS.begin(order, channel.send)
    return order


def _limited(assignment: Assignment) -> Assignment:
    """The same, once it limits this process: users' code is not imported yet."""
    if assignment.memory_limit_bytes:
        limit_memory(assignment.memory_limit_bytes)
    return assignment


def _end_with(work: Callable[[], None], channel: Channel) -> NoReturn:
    """The process ends after the work, in whichever thread it runs."""
    code = _exit_code_of(work, channel)
    if code is not ExitCode.SUPERSEDED:  # another process may write the same files by now
        EXIT_HANDLERS.run(ON_THE_WAY_S)
    log.info("worker_ended", exit_code=code.name)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a broken process group may hang in its destructors


def _exit_code_of(work: Callable[[], None], channel: Channel) -> ExitCode:
    try:
        work()
    except PeerLost as error:
        log.warning("peer_lost", reason=str(error))
        return ExitCode.PEER_LOST
    except DeviceMemoryExceeded as error:
        log.warning("memory_exceeded", reason=str(error))
        return ExitCode.OUT_OF_MEMORY
    except (DeviceUnusable, DeviceLost) as error:
        log.error("device_unusable", reason=str(error))
        return ExitCode.DEVICE_UNUSABLE
    except Superseded as error:
        log.warning("superseded", reason=str(error))
        return ExitCode.SUPERSEDED
    except TrainingFailed as error:
        log.error("training_failed", reason=without_own_secrets(str(error)))
        cause = _cause_of(error)
        EXIT_HANDLERS.run(ON_THE_WAY_S)
        channel.send(_failed(str(error), cause, _missing_file_advice(error.__cause__)))
        return ExitCode.FAILED
    except BaseException as error:  # any error of the user's code, including SystemExit
        text = _printed(traceback.format_exc())
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", None) or ())
        message = ": ".join(filter(None, (type(error).__name__, _words_of(error))))
        if isinstance(error, KeyboardInterrupt):
            message += ": this worker got SIGINT, or its code raised it"
        elif meaning := meaning_of(error, PROCESS.where):
            message, notes = meaning, ""
        if is_out_of_memory(error) and (advice := job_memory_advice()):
            notes += f"; {advice}"
        notes += _missing_file_advice(error)
        EXIT_HANDLERS.run(ON_THE_WAY_S)
        channel.send(_failed(message, text, notes))
        return ExitCode.FAILED
    return ExitCode.DONE


def _missing_file_advice(error: BaseException | None) -> str:
    """What to do about a file that the user's machine has, and this one has not; "" for any other error."""
    if not isinstance(error, FileNotFoundError) or not isinstance(error.filename, str):
        return ""
    file, home = (
        Path(error.filename),
        Path(os.environ.get(ARTIFACT_VARIABLE, "")).parent,
    )  # that of a profile is deleted
    if not file.is_absolute() or file.is_relative_to(home):
        sent = "the job works in a copy of what was sent with it: send its folder with --workdir DIR"
        return f"; {sent}, or name the data with --data NAME=PATH"
    return "; its node has no such path, or does not show it to jobs: name the data with --data NAME=PATH"


def _words_of(error: BaseException) -> str:
    """Never raises, even if the user's __str__ does."""
    try:
        return str(error)
    except Exception as failed:
        return f"its __str__ raised {type(failed).__name__}"


def _failed(error: str, traceback: str, notes: str = "") -> Failed:
    """Masked before it is cut: a part of a secret would remain."""
    short = folded(traceback)
    return Failed(
        error=without_own_secrets(error)[:_MAX_TEXT] + without_own_secrets(notes)[:_MAX_NOTES],
        traceback=without_own_secrets(short)[-_MAX_TEXT:],
        whole_traceback=without_own_secrets(traceback)[-_MAX_TEXT:] if short != traceback else "",
    )


def _cause_of(error: BaseException) -> str:
    if error.__cause__ is None:
        return ""
    return _printed("".join(traceback.format_exception(error.__cause__)))


def _printed(text: str) -> str:
    """This traceback; the log has it without the engine's frames."""
    print(without_own_secrets(folded(text)), file=sys.stderr)
    return text
