"""A long evaluation is no stall: each pass of the model resets the seconds without progress that a worker reports."""

from collections.abc import Mapping

import pytest
import torch
from torch import nn

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.trainer import Evaluation
from elasticflow.services.executor.worker.process.telemetry import Telemetry
from tests.support.telemetry_reader import TelemetryReader

LONG_S = 1000.0


class Evaluated:
    """A training function that evaluates in two passes, each of which takes long."""

    def __init__(self, worker: TelemetryReader, *, in_parts: bool) -> None:
        self.evaluates_in_parts = in_parts
        self.silences_s: list[float] = []
        self._worker = worker

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        for _ in range(2):
            self._worker.now_s += LONG_S
            self.silences_s.append(self._worker.next_alive().seconds_since_progress)
            model(torch.ones(1))
            self.silences_s.append(self._worker.next_alive().seconds_since_progress)
        return {}

    def evaluate_part(self, model: nn.Module, part: int, num_parts: int) -> Mapping[str, float]:
        return {"passes": 2.0, **self.evaluate(model)}

    def metrics_of_sums(self, sums: Mapping[str, float]) -> Mapping[str, float]:
        return sums


@pytest.mark.parametrize("in_parts", [False, True])
def test_each_pass_of_an_evaluation_is_progress(monkeypatch: pytest.MonkeyPatch, in_parts: bool) -> None:
    worker = TelemetryReader(monkeypatch)
    function = Evaluated(worker, in_parts=in_parts)
    with Telemetry(worker) as reporting:  # type: ignore[arg-type]
        evaluation = Evaluation(function, nn.Linear(1, 1), 0, reporting.progressed)  # type: ignore[arg-type]
        evaluation.together(7, GenerationMembers(None, VirtualNodes(count=1, global_batch_size=1)), {})
    assert function.silences_s == [LONG_S, 0.0, LONG_S, 0.0]
