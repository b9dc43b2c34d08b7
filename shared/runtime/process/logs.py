"""Logs: an event name and keys, readable on a terminal, elsewhere one JSON object a line. Many refusals are counted."""

import logging
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

import structlog


def configure_logs(log_format: str = "auto", *, level: str = "info", stream: TextIO = sys.stderr) -> None:
    """Set up structlog for this process. log_format: "console", "json", or "auto" by what stream is."""
    console = log_format == "console" or (log_format == "auto" and stream.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(
            colors=stream.isatty() and not os.environ.get("NO_COLOR"),
            exception_formatter=structlog.dev.plain_traceback,  # the default one prints local variables: secrets
        )
        if console
        else structlog.processors.JSONRenderer()
    )
    exceptions = [] if console else [structlog.processors.format_exc_info]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *exceptions,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )


class _LogOfProcess:
    """The log as this process has configured structlog: a service, a worker, a command, or a program of a user.

    In a program that has not, this code is a library: its warnings go to standard error, and all else is dropped.
    structlog itself would print every line to standard output, among the user's own.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(structlog.get_logger() if structlog.is_configured() else _only_warnings(), name)


log: Any = _LogOfProcess()


def get_log(service: str, **keys: Any) -> Any:
    """A logger whose every line names its service."""
    return log.bind(service=service, **keys)


def _only_warnings() -> Any:
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),  # of now: notebooks and tests replace it
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )


class BackoffLogger:
    """Logs repeated failures: the first at once, then more rarely (the 2nd, 4th, 8th ... try), and their end.

    A failure of another kind is logged at once, too.
    """

    def __init__(self, log: Any, event: str) -> None:
        self._log, self._event = log, event
        self._kind: type[Exception] | None = None
        self._num_tries = 0

    def goes_on(self, error: Exception) -> None:
        """One more try has failed."""
        self._num_tries = self._num_tries + 1 if isinstance(error, self._kind or ()) else 1
        self._kind = type(error)
        if self._num_tries.bit_count() == 1:
            self._log.warning(self._event, error=str(error), tries=self._num_tries)

    def is_over(self) -> None:
        """A try has succeeded."""
        if self._kind is not None:
            self._log.info(f"{self._event}: over", tries=self._num_tries)
        self._kind, self._num_tries = None, 0


# --- refusals ------------------------------------------------------------------------------------------
# The log of refusals: a sender of thousands fills neither the disk nor the eyes of the operator.

COUNTED_S = 60.0
MAX_AT_ONCE = 100  # senders and kinds that are counted apart; a flood may come under many names


@dataclass(slots=True)
class _Counted:
    """number: further refusals since the one that was written in full."""

    since_s: float
    number: int = 0


class RefusalLog:
    """Writes the first refusal of a kind and sender in a minute in full, and then how many followed.

    write_line: a method of the log, such as `log.warning`.
    """

    def __init__(self, write_line: Callable[..., None]) -> None:
        self._write_line = write_line
        self._counted: dict[tuple[str, str], _Counted] = {}  # by kind and sender, the oldest first

    def write(self, kind: str, sender: str, now_s: float, **keys: Any) -> None:
        """sender: a tenant, a subject, or "" if all count as one. keys: of the full line."""
        self.write_counts(now_s)
        key = (kind, sender)
        if key not in self._counted and len(self._counted) >= MAX_AT_ONCE:
            key = (kind, "")
        elif key not in self._counted:
            self._counted[key] = _Counted(now_s)
            self._write_line(kind, **keys)
            return
        self._counted.setdefault(key, _Counted(now_s)).number += 1

    def close(self) -> None:
        """Write what was counted so far: nothing is written any more."""
        self.write_counts(math.inf)

    def write_counts(self, now_s: float) -> None:
        """How many were not written in full, of each minute that has passed."""
        for (kind, sender), counted in tuple(self._counted.items()):
            if 0.0 <= now_s - counted.since_s < COUNTED_S:  # else it has passed, or the clock was set
                break
            del self._counted[kind, sender]
            if counted.number:
                since_s = round(counted.since_s, 3)
                self._write_line("RefusalsCounted", kind=kind, sender=sender, number=counted.number, since_s=since_s)
