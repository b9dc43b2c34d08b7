"""A repeated step that differs: what the error names, and where it is a warning."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.loop.repeatability_check import require_repeated


def trainer(device: str, reproducible: str = "bitwise") -> tuple[Any, list[str]]:
    warned: list[str] = []
    return SimpleNamespace(
        device=SimpleNamespace(type=device),
        function=SimpleNamespace(reproducible=reproducible),
        telemetry=SimpleNamespace(warn=warned.append),
        read_ahead=SimpleNamespace(require_same_samples=lambda _: None),
        engine=SimpleNamespace(computed=()),
    ), warned


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_has_changed_is_named_on_any_device(device: str) -> None:
    with pytest.raises(
        TrainingFailed, match=r"another loss when it was repeated: the job keeps self.a, self.b, self.c and 1"
    ):
        require_repeated(trainer(device)[0], "loss", ["self.a", "self.b", "self.c", "self.d"])


def test_without_a_known_cause_it_fails_on_a_cpu_slot_and_is_a_warning_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)  # another test may have compiled a model
    with pytest.raises(TrainingFailed, match="such as a file, an iterator or an environment variable"):
        require_repeated(trainer("cpu")[0], "loss", [])
    on_gpu, warned = trainer("cuda")
    require_repeated(on_gpu, "gradient of weight", [])
    assert len(warned) == 1
    fast, warned = trainer("cpu", "fast")
    require_repeated(fast, "loss", [])
    assert not warned
