"""What errors of users' code mean, and what their user can change."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from elasticflow.services.executor.worker.engine.training_function import in_users_code
from elasticflow.services.executor.worker.interface import TrainingFailed


def set_a_handler() -> None:
    with in_users_code("in train.py"):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_signal_handler_is_refused_with_what_runs_at_the_end_instead() -> None:
    with ThreadPoolExecutor(1) as worker, pytest.raises(TrainingFailed, match=r"in train.py: .* `finally` and atexit"):
        worker.submit(set_a_handler).result()
