"""A GPU that cannot be used is named, with what to do; NVML and CUDA are fakes here."""

import os
import sys
from types import SimpleNamespace

import pytest
import torch
from structlog.testing import capture_logs

from elasticflow.services.executor.worker.process.device import (
    SLOTS_OF_GPU,
    DeviceUnusable,
    claim,
    driver_version,
    warn_if_occupied,
)


@pytest.fixture(autouse=True)
def nvml(monkeypatch):
    """One GPU, on which two processes run."""
    users = [SimpleNamespace(pid=4711, usedGpuMemory=68 * 2**30), SimpleNamespace(pid=4712, usedGpuMemory=None)]
    fake = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "610.12",
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByUUID=lambda name: name,
        nvmlDeviceGetComputeRunningProcesses=lambda _: users,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)


@pytest.mark.parametrize(
    ("raised", "advice"),
    [
        (
            "CUDA error: out of memory",
            "processes 4711 (68.0 GiB), 4712 (0.0 GiB) use it: end them, or leave the GPU out",
        ),
        ("No CUDA GPUs are available", "CUDA_VISIBLE_DEVICES is '1' here: let that of its executor name GPUs that"),
        ("Torch not compiled with CUDA enabled", "install a build of torch that fits the node's driver"),
    ],
)
def test_a_gpu_that_does_not_start_is_explained(monkeypatch, raised, advice):
    def start() -> None:
        raise RuntimeError(raised)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv(SLOTS_OF_GPU, "")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", start)
    with pytest.raises(DeviceUnusable) as unusable:
        claim("cuda", 1)
    assert raised in str(unusable.value)
    assert advice in str(unusable.value)


@pytest.mark.parametrize(("free_gib", "is_named"), [(11, True), (79, False)])
def test_other_processes_on_a_gpu_are_named(monkeypatch, free_gib, is_named):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free_gib * 2**30, 80 * 2**30))
    with capture_logs() as logs:
        warn_if_occupied(torch.device("cuda", 0), {"CUDA_VISIBLE_DEVICES": "GPU-a"})
    assert [entry["event"] for entry in logs] == ["gpu_memory_is_taken"] * is_named
    assert all("4711 (68.0 GiB)" in entry["processes"] and entry["free_gib"] == 11 for entry in logs)


@pytest.mark.parametrize(("inherited", "is_named"), [("GPU-a,GPU-a,GPU-b,GPU-b", False), ("GPU-a,GPU-b", True)])
def test_workers_in_other_slots_of_a_gpu_are_no_other_processes(monkeypatch, inherited, is_named):
    """Also for a warm worker, which claims its GPU twice."""
    started = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", inherited)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: bool(started))
    monkeypatch.setattr(torch.cuda, "init", lambda: started.append(True))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (11 * 2**30, 80 * 2**30))
    monkeypatch.setenv(SLOTS_OF_GPU, "")
    for _ in range(2):
        device = claim("cuda", 1)
    with capture_logs() as logs:
        warn_if_occupied(device, os.environ)
    assert bool(logs) == is_named


def test_a_node_without_a_driver_has_no_version(monkeypatch):
    assert driver_version() == "610.12"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert driver_version() == ""
