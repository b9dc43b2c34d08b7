"""A worker's channel that reads what its telemetry reports, on a clock of the test."""

import queue
from types import SimpleNamespace
from typing import Any

import pytest

from elasticflow.services.executor.worker.process import telemetry
from elasticflow.shared.messages.worker_protocol.from_worker import Alive

WAIT_S = 30.0


class TelemetryReader:
    """Its clock is the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self._reports = queue.SimpleQueue[Any]()
        monkeypatch.setattr(telemetry, "_PERIOD_S", 0.001)
        monkeypatch.setattr(telemetry, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    def send(self, report: Any) -> None:
        self._reports.put(report)

    def next_alive(self) -> Alive:
        """A report that is made from now on."""
        while not self._reports.empty():
            self._reports.get()
        self._reports.get(timeout=WAIT_S)  # its time may have been read before
        report = self._reports.get(timeout=WAIT_S)
        assert isinstance(report, Alive)
        return report
