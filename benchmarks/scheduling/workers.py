"""Processes that measure in parallel."""

import signal
from concurrent.futures import ProcessPoolExecutor

from elasticflow.shared.scheduling.warm_up import warm_up


def new_workers(count: int) -> ProcessPoolExecutor:
    """What is compiled once is compiled before anything is measured; at Ctrl-C they end without a word."""
    return ProcessPoolExecutor(count, initializer=_get_ready)


def _get_ready() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    warm_up()
