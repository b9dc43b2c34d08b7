"""Logs: an event name and keys, readable on a terminal, one JSON object a line everywhere else."""

import logging
import sys
from typing import Any, TextIO

import structlog


def configure_logs(log_format: str = "auto", *, level: str = "info", stream: TextIO = sys.stderr) -> None:
    """Set up structlog for this process. log_format: "console", "json", or "auto" by what stream is."""
    console = log_format == "console" or (log_format == "auto" and stream.isatty())
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=stream.isatty())
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


def get_log(service: str, **keys: Any) -> Any:
    """A logger whose every line names its service."""
    return structlog.get_logger().bind(service=service, **keys)
