"""Logs: an event name and keys, readable on a terminal, one JSON object a line everywhere else."""

import logging
import os
import sys
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
