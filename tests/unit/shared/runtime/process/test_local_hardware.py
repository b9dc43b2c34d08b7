"""The GPUs of this machine, as NVML lists them, and the names of their types."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.messages.limits import GPU_TYPE_PATTERN
from elasticflow.shared.runtime.process.local_hardware import (
    LocalGpu,
    cgroup_limit_bytes,
    cpu_slot_type,
    gpu_type_of,
    memory_bytes,
    visible_gpus,
)

V100 = "Tesla V100-SXM2-16GB"


class Gpu(NamedTuple):
    """As NVML knows it. mib: None: not supported. instances: of a partitioned GPU."""

    uuid: str
    product: str
    mib: int | None = 16_384
    instances: "tuple[Gpu | None, ...] | None" = None


def install_driver(monkeypatch: pytest.MonkeyPatch, *gpus: Gpu) -> None:
    """NVML of a machine with these GPUs."""

    def memory(gpu: Gpu) -> SimpleNamespace:
        if gpu.mib is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(total=gpu.mib << 20)

    def mig_mode(gpu: Gpu) -> tuple[int, int]:
        if gpu.product == V100:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return int(gpu.instances is not None), 1

    def instance(gpu: Gpu, number: int) -> Gpu:
        found = (gpu.instances or ())[number]
        if found is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return found

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(gpus),
        "nvmlDeviceGetHandleByIndex": lambda index: gpus[index],
        "nvmlDeviceGetName": lambda gpu: gpu.product,
        "nvmlDeviceGetUUID": lambda gpu: gpu.uuid,
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetMinorNumber": lambda gpu: 10 - gpus.index(gpu),  # in another order
        "nvmlDeviceGetMigMode": mig_mode,
        "nvmlDeviceGetMaxMigDeviceCount": lambda gpu: len(gpu.instances or ()),
        "nvmlDeviceGetMigDeviceHandleByIndex": instance,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        (None, ("0", "1")),
        ("", ()),
        ("1", ("1",)),
        ("1, 0", ("1", "0")),
        ("0,-1,1", ("0",)),
        ("7,0", ()),
        ("GPU-b2", ("GPU-b2",)),
        ("GPU-c3,0", ()),
        ("MIG-d4", ()),
    ],
)
def test_visible_gpus_are_those_that_cuda_sees(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, seen: tuple[str, ...]
) -> None:
    install_driver(monkeypatch, Gpu("GPU-a1", V100), Gpu("GPU-b2", V100))
    found = visible_gpus({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert tuple(gpu.name for gpu in found) == seen


def test_each_visible_gpu_has_its_own_type_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    install_driver(
        monkeypatch, Gpu("GPU-a1", "NVIDIA H100 80GB HBM3", 81_559), Gpu("GPU-b2", V100), Gpu("GPU-c3", "X", None)
    )
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-b2,0,2"}) == (
        LocalGpu("GPU-b2", "V100-SXM2-16GB", 16_384 << 20, "GPU-b2", 1, "nvidia9"),
        LocalGpu("0", "H100-80GB-HBM3", 81_559 << 20, "GPU-a1", 0, "nvidia10"),
        LocalGpu("2", "X", 0, "GPU-c3", 2, "nvidia8"),
    )


def test_a_partitioned_gpu_counts_as_its_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA would show only the first of them, so each worker gets its own by its name."""
    parts = (
        Gpu("MIG-p", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20_096),
        None,
        Gpu("MIG-q", "A100-SXM4-40GB MIG 1g.5gb", 4_864),
    )
    install_driver(
        monkeypatch, Gpu("GPU-a1", "NVIDIA A100-SXM4-40GB", 40_000), Gpu("GPU-b2", "A100-SXM4-40GB", 40_000, parts)
    )
    large = LocalGpu("MIG-p", "A100-SXM4-40GB-MIG-3g.20gb", 20_096 << 20, "MIG-p", 1, "nvidia9")
    small = LocalGpu("MIG-q", "A100-SXM4-40GB-MIG-1g.5gb", 4_864 << 20, "MIG-q", 1, "nvidia9")
    whole = LocalGpu("0", "A100-SXM4-40GB", 40_000 << 20, "GPU-a1", 0, "nvidia10")
    assert visible_gpus({}) == (whole, large, small)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "MIG-q"}) == (small,)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "1"}) == (large,)


def test_a_machine_without_a_driver_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", missing)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}) == ()


def test_a_driver_without_gpus_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    install_driver(monkeypatch)
    assert visible_gpus({}) == ()


@pytest.mark.parametrize(
    ("product", "gpu_type"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-80GB-HBM3"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("A100-SXM4-40GB", "A100-SXM4-40GB"),
        (V100, "V100-SXM2-16GB"),
        ("NVIDIA Tesla K80", "K80"),
        ("NVIDIA GeForce RTX 4090", "GeForce-RTX-4090"),
        ("NVIDIA RTX 6000 (Ada)", "RTX-6000-Ada"),
        ("NVIDIA ", ""),
    ],
)
def test_a_type_is_the_model_without_the_brand(product: str, gpu_type: str) -> None:
    assert gpu_type_of(product) == gpu_type


@given(st.text(), st.floats(0.001, 1e4))
def test_each_type_can_be_sent_and_is_its_own_type(product: str, cpu_share: float) -> None:
    for gpu_type in (gpu_type_of(product), cpu_slot_type(cpu_share)):
        assert re.fullmatch(GPU_TYPE_PATTERN, gpu_type)
    assert gpu_type_of("NVIDIA " + gpu_type_of(product)) == gpu_type_of(product)


@pytest.mark.gpu
@pytest.mark.parametrize("visible", [None, "", "0", "-1", "0,-1", "0,1000", "1000,0"])
def test_visible_gpus_are_those_that_torch_counts(visible: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    count = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    counted = subprocess.run([sys.executable, "-c", count], env=environment, capture_output=True, text=True, check=True)
    assert len(visible_gpus(environment)) == int(counted.stdout)


@pytest.mark.gpu
def test_a_gpu_has_the_name_that_torch_reads() -> None:
    import torch  # slow, and only this test needs it

    first, torch_name = visible_gpus(os.environ)[0], torch.cuda.get_device_properties(0).name
    assert first.gpu_type == gpu_type_of(torch_name)
    assert first.memory_bytes >= torch.cuda.get_device_properties(0).total_memory


# --- memory ---------------------------------------------------------------------------------------------


def test_the_least_limit_of_the_cgroups_counts(tmp_path: Path) -> None:
    own, cgroups = tmp_path / "own", tmp_path / "cgroups"
    (cgroups / "slice" / "job").mkdir(parents=True)
    own.write_text("0::/slice/job\n")
    assert cgroup_limit_bytes(cgroups, own) == 0
    (cgroups / "slice" / "job" / "memory.max").write_text("max\n")
    (cgroups / "slice" / "memory.max").write_text("7000\n")
    assert cgroup_limit_bytes(cgroups, own) == 7000
    (cgroups / "slice" / "job" / "memory.max").write_text("5000\n")
    assert cgroup_limit_bytes(cgroups, own) == 5000


def test_a_machine_without_cgroups_has_no_limit(tmp_path: Path) -> None:
    assert cgroup_limit_bytes(tmp_path / "cgroups", tmp_path / "own") == 0
    assert memory_bytes() > 0
