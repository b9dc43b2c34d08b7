"""A generation pays for its own steps only."""

from types import SimpleNamespace

import pytest
import torch

from elasticflow.services.executor.worker.engine.gradient_digest import StepDigests
from elasticflow.services.executor.worker.engine.trainer import Trainer
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle


def test_a_generation_does_not_pay_for_what_its_workers_did_before() -> None:
    """A survivor's first step once took 17 s: one of its threads had computed while it waited for the others."""
    trainer, computed_s, slept_s = object.__new__(Trainer), 0.0, list[float]()
    trainer.members = SimpleNamespace(group=None)  # type: ignore[assignment]
    trainer.function = SimpleNamespace(on_step=None)  # type: ignore[assignment]
    spec = SimpleNamespace(metric_conditions=())
    trainer.assignment = SimpleNamespace(purpose="profile", spec=spec)  # type: ignore[assignment]
    trainer.telemetry = SimpleNamespace(training_began=lambda _: None)  # type: ignore[assignment]
    trainer.iteration, trainer.metric_names = 0, None
    trainer.cpu_throttle = CpuThrottle(
        0.2, cpu_clock=lambda: computed_s, wall_clock=lambda: computed_s, sleep=slept_s.append
    )
    trainer._digests = StepDigests(torch.device("cpu"))
    computed_s = 3.4
    trainer.begin_generation(2, ())
    computed_s += 0.01
    trainer.cpu_throttle.sleep_off_excess()
    assert slept_s == [pytest.approx(0.04)]
