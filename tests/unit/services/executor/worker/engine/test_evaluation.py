"""A long evaluation is no stall: each pass of the model resets the seconds without progress that a worker reports."""

import queue
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.trainer import Evaluation
from elasticflow.services.executor.worker.process import telemetry
from elasticflow.services.executor.worker.process.telemetry import Telemetry
from elasticflow.shared.messages.worker_protocol.from_worker import Alive

WAIT_S = 30.0
LONG_S = 1000.0


class Worker:
    """Its clock is the test's."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._reports = queue.SimpleQueue[Any]()

    def send(self, report: Any) -> None:
        self._reports.put(report)

    def next_silence_s(self) -> float:
        """Of a report that is made from now on."""
        while not self._reports.empty():
            self._reports.get()
        self._reports.get(timeout=WAIT_S)  # its time may have been read before
        report = self._reports.get(timeout=WAIT_S)
        assert isinstance(report, Alive)
        return report.seconds_since_progress


class Evaluated:
    """A training function that evaluates in two passes, each of which takes long."""

    def __init__(self, worker: Worker, *, in_parts: bool) -> None:
        self.evaluates_in_parts = in_parts
        self.silences_s: list[float] = []
        self._worker = worker

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        for _ in range(2):
            self._worker.now_s += LONG_S
            self.silences_s.append(self._worker.next_silence_s())
            model(torch.ones(1))
            self.silences_s.append(self._worker.next_silence_s())
        return {}

    def evaluate_part(self, model: nn.Module, part: int, num_parts: int) -> Mapping[str, float]:
        return {"passes": 2.0, **self.evaluate(model)}

    def metrics_of_sums(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        return sums


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    worker = Worker()
    monkeypatch.setattr(telemetry, "_PERIOD_S", 0.001)
    monkeypatch.setattr(telemetry, "time", SimpleNamespace(monotonic=lambda: worker.now_s))
    return worker


@pytest.mark.parametrize("in_parts", [False, True])
def test_each_pass_of_an_evaluation_is_progress(worker: Worker, in_parts: bool) -> None:
    function = Evaluated(worker, in_parts=in_parts)
    with Telemetry(worker) as reporting:  # type: ignore[arg-type]
        evaluation = Evaluation(function, nn.Linear(1, 1), 0, reporting.progressed)  # type: ignore[arg-type]
        evaluation.together(7, GenerationMembers(None, VirtualNodes(count=1, global_batch_size=1)), {})
    assert function.silences_s == [LONG_S, 0.0, LONG_S, 0.0]
