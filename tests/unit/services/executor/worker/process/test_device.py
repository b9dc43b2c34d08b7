"""How a worker configures its device."""

import os
from collections.abc import Iterator

import pytest
import torch

from elasticflow.services.executor.worker.process.device import choose_repeatable_kernels, claim


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    benchmark, fill = torch.backends.cudnn.benchmark, torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark, torch.utils.deterministic.fill_uninitialized_memory = benchmark, fill


def test_a_gpu_uses_repeatable_kernels_despite_settings_of_the_training_function() -> None:
    torch.backends.cudnn.benchmark = True
    choose_repeatable_kernels(torch.device("cuda", 0))
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled(), "an operation without such a kernel may run"
    assert not torch.backends.cudnn.benchmark


def test_a_cpu_slot_is_not_configured() -> None:
    choose_repeatable_kernels(torch.device("cpu"))
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(("inherited", "alone"), [("", "2"), ("4,5,6", "6"), ("GPU-a,GPU-b,MIG-c", "MIG-c")])
def test_a_worker_sees_only_its_own_gpu(monkeypatch: pytest.MonkeyPatch, inherited: str, alone: str) -> None:
    """Also after its warm-up, which claims it first: another GPU would get a context of half a gigabyte."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", inherited)
    started: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(started))
    monkeypatch.setattr(torch.cuda, "init", lambda: started.append(os.environ["CUDA_VISIBLE_DEVICES"]))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    assert claim("cuda", 2) == claim("cuda", 2) == torch.device("cuda", 0)
    assert started[0] == os.environ["CUDA_VISIBLE_DEVICES"] == alone
