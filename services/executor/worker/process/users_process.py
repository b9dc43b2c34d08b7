"""What users' code does to the process that it shares with the engine: it ends or forks it, sets a timer, reads input.

Each of these has a sentence that says what was done, in which line, and what to do instead.
"""

import bdb
import io
import mmap
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from elasticflow.services.executor.worker.process.users_code import is_users_frame, modules_in
from elasticflow.shared.messages.job_spec import SCRIPT, TORCHRUN
from elasticflow.shared.messages.worker_protocol.from_worker import Ending, ExitCode, FromWorker, Warned
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment
from elasticflow.shared.messages.worker_protocol.training_tasks import FromManager
from elasticflow.shared.runtime.process.logs import log

_MAX_REPORT_BYTES = 4096
_TIMERS = {signal.SIGALRM: "ITIMER_REAL", signal.SIGVTALRM: "ITIMER_VIRTUAL", signal.SIGPROF: "ITIMER_PROF"}
_NO_TERMINAL = (
    "a job has no terminal, so nobody can answer. Pass the value with --set NAME=VALUE, as an argument of the script, "
    "or in a file that is sent with it"
)

# --- places --------------------------------------------------------------------------------------------


def place_in(error: BaseException) -> str:
    """The innermost line of users' code in the traceback: " at train.py:12"; "" if there is none."""
    places = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if _is_users(frame)]
    return _place(*places[-1]) if places else ""


def place_now() -> str:
    """The innermost line of users' code that this thread is in."""
    frame = _innermost(sys._getframe(1))
    return "" if frame is None else _place(frame, frame.f_lineno)


def places_of_threads() -> list[str]:
    """The innermost lines of users' code that threads are in, each once: " at train.py:12 in train"."""
    frames = map(_innermost, sys._current_frames().values())
    return sorted({f"{_place(frame, frame.f_lineno)} in {frame.f_code.co_name}" for frame in frames if frame})


def _innermost(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not _is_users(frame):
        frame = frame.f_back
    return frame


def _is_users(frame: FrameType) -> bool:
    return is_users_frame(frame) and not frame.f_code.co_filename.startswith("<frozen")


def _place(frame: FrameType, line: int) -> str:
    file, name = Path(frame.f_code.co_filename), ""
    with suppress(OSError, ValueError):  # the current folder may be gone, and the file may be elsewhere
        name = str(file.relative_to(Path.cwd()))
    return f" at {name or file.name}:{line}"


# --- errors --------------------------------------------------------------------------------------------


def exit_call(ended: SystemExit) -> str:
    """How users' code has ended the process, and where: "sys.exit(3) at train.py:12"."""
    name = "exit" if modules_in(ended)[-1:] == ["_sitebuiltins"] else "sys.exit"
    return f"{name}({'' if ended.code is None else f'{ended.code!r:.200}'}){place_in(ended)}"


def meaning_of(error: BaseException, where: str) -> str:
    """What users' code did to its process, if this error follows from it, and what to do instead; "" for any other.

    where: such as "in iteration 7".
    """
    if isinstance(error, SystemExit):
        return _exit_meaning(error, where)
    if not (waits := waits_for_person(error)):
        return ""
    if isinstance(error, bdb.BdbQuit):
        return (
            f"{waits}, {where}, and a job has no terminal: take breakpoint() or set_trace() out, or debug it in your "
            f"own terminal with {_locally()}"
        )
    return f"{waits}, {where}, and {_NO_TERMINAL}"


def waits_for_person(error: BaseException) -> str:
    """What waits for an answer that nobody gives, if the error follows from it, and where; "" for any other."""
    if isinstance(error, bdb.BdbQuit):
        return f"a debugger waits for its user{place_in(error)}"
    if isinstance(error, EOFError) and _asks_person(error):
        return f"the code asks for input{place_in(error)}"
    return ""


def _exit_meaning(ended: SystemExit, where: str) -> str:
    said = "".join(f" ({note})" for note in getattr(ended, "__notes__", ()))
    ends = f"{exit_call(ended)}{said} ends the process {where}"
    if PROCESS.entry in (SCRIPT, TORCHRUN):
        return (
            f"{ends}: a script that ends with another status than 0 has failed. If it is done, let it reach its last "
            "line, or call sys.exit(0) there"
        )
    return (
        f"{ends}: a job's class ends no process. Return from the method instead; the job ends at max_iterations or "
        "when a metric meets its condition. Raise an exception to let it fail"
    )


def _asks_person(error: EOFError) -> bool:
    return str(error) == "EOF when reading a line" or modules_in(error)[-1:] == ["getpass"]


def _locally() -> str:
    return "`python FILE`" if PROCESS.entry in (SCRIPT, TORCHRUN) else "`eflow run FILE`"


# --- the process ---------------------------------------------------------------------------------------


class UsersProcess:
    """This process, once it is the worker of a job. where: what users' code does now, such as "in iteration 7".

    phase: the same in a start, as users know its parts; "": the engine is at work, or waits for peers.
    """

    def __init__(self) -> None:
        self.entry = ""
        self.where = self.phase = ""
        self.is_worker = False
        self.is_forked = False
        self.report_progress: Callable[[], None] = lambda: None  # the steps done, before the process ends
        self._send: Callable[[FromWorker | FromManager], None] = lambda message: None
        self._forked_by = self._timer_set = ""
        self._unmasked: set[int] = set()  # signals that were blocked before a fork
        self._has_warned_of_input = False

    def begin(self, assignment: Assignment, send: Callable[[FromWorker | FromManager], None]) -> None:
        """Users' code may run from now on. In the main thread, which alone may set handlers."""
        self.entry, self.is_worker, self._send = assignment.spec.entry, True, send
        self._pid, self._exit = os.getpid(), os._exit
        self._report = mmap.mmap(-1, _MAX_REPORT_BYTES)  # shared with the processes that users' code forks
        os._exit = self._end_at_once  # pyright: ignore[reportAttributeAccessIssue]
        os.register_at_fork(
            before=self._before_fork, after_in_child=self._after_fork, after_in_parent=self._after_fork_here
        )
        for number in _TIMERS:
            signal.signal(number, self._timer_is_over)
        signal.alarm, signal.setitimer = self._noting_timer(signal.alarm), self._noting_timer(signal.setitimer)
        sys.stdin = _EmptyInput(self._input_is_read)

    # --- forks ---

    def child_report(self) -> str:
        """What a forked child did in place of its parent; "" if there was none."""
        if not self.is_worker or not self._report[0]:
            return ""
        return self._report[:].rstrip(b"\0").decode(errors="replace")

    def end_if_forked(self, error: BaseException | None = None) -> None:
        """End this process if users' code has forked it: it came back to the engine, or raised. As Python ends it."""
        if not self.is_forked:
            return
        if error is None:
            text = (
                f"os.fork(){self._forked_by} has made a second process, which came back into the training: each step "
                "would be done twice. End the child with os._exit(0), or start a function with multiprocessing.Process"
            )
            report = text.encode(errors="replace")[:_MAX_REPORT_BYTES]
            self._report[: len(report)] = report
            print(text, file=sys.stderr)
        self.end_child(error)

    def end_child(self, error: BaseException | None) -> NoReturn:
        """End a forked process that has returned, or raised."""
        code = 0 if error is None else 1
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
        self._exit(code & 0xFF)

    def _before_fork(self) -> None:
        """Hold SIGTERM back until the child has no handler of the engine any more: a pool may end it at once."""
        self._unmasked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self._forked_by = f"{place_now()}{f', {self.where}' if self.where else ''}"

    def _after_fork(self) -> None:
        self.is_forked = True
        for number in (signal.SIGTERM, *_TIMERS):  # multiprocessing.Pool ends its processes with SIGTERM
            if getattr(signal.getsignal(number), "__module__", "").startswith("elasticflow."):
                signal.signal(number, signal.SIG_DFL)
        self._after_fork_here()

    def _after_fork_here(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._unmasked)

    # --- ends ---

    def _end_at_once(self, status: int) -> NoReturn:
        """In place of os._exit: the reason of an end that users' code demands."""
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if os.getpid() == self._pid and not caller.startswith("elasticflow."):
            self._ends(
                f"was ended by os._exit({status}){place_now()}: raise an exception to let the job fail, or return to "
                "let it go on"
            )
            status = ExitCode.FAILED if status == ExitCode.DONE else status
        self._exit(status)

    def _timer_is_over(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            name = signal.Signals(number).name
            self._ends(
                f"was ended by {name}: a timer of the job's code was over{self._timer_set}, and no handler was there. "
                "Leave signal.alarm() and signal.setitimer() out: steps take as long as they take"
            )
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _ends(self, reason: str) -> None:
        self.report_progress()
        self._send(Ending(reason=f"{reason}{f' ({self.where})' if self.where else ''}"))
        sys.stdout.flush()

    def _noting_timer(self, set_timer: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            self._timer_set = f", set{place_now()}"
            return set_timer(*arguments)

        return noted

    # --- input ---

    def _input_is_read(self) -> None:
        if self._has_warned_of_input or os.getpid() != self._pid:
            return
        self._has_warned_of_input = True
        warning = f"the code reads standard input{place_now()}, which is empty: {_NO_TERMINAL}"
        log.warning("job_warned", warning=warning)
        self._send(Warned(warning=warning))


class _EmptyInput(io.TextIOWrapper):
    """Standard input, which is empty. on_read: called before it is read."""

    def __init__(self, on_read: Callable[[], None]) -> None:
        super().__init__(io.BufferedReader(io.FileIO(0, closefd=False)))
        self._on_read = on_read

    def read(self, size: int | None = -1, /) -> str:
        self._on_read()
        return super().read(size)

    def readline(self, size: int = -1, /) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._on_read()
        return super().readline(size)

    def readlines(self, hint: int = -1, /) -> list[str]:
        self._on_read()
        return super().readlines(hint)

    def __iter__(self) -> Iterator[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._on_read()
        return super().__iter__()


PROCESS = UsersProcess()
