"""The GPUs of this machine, as the driver's command lists them, and the names of their types."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.messages.limits import GPU_TYPE_PATTERN
from elasticflow.shared.runtime.process.local_hardware import LocalGpu, cpu_slot_type, gpu_type_of, visible_gpus

V100 = "Tesla V100-SXM2-16GB"


def install_driver(folder: Path, monkeypatch: pytest.MonkeyPatch, *rows: str) -> None:
    """A command that prints these rows of UUID, product and MiB of memory, whatever the query."""
    driver = folder / "nvidia-smi"
    driver.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    driver.chmod(driver.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


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
        ("MIG-d4", ("MIG-d4",)),
    ],
)
def test_visible_gpus_are_those_that_cuda_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, seen: tuple[str, ...]
) -> None:
    install_driver(tmp_path, monkeypatch, f"GPU-a1, {V100}, 16384", f"GPU-b2, {V100}, 16384")
    found = visible_gpus({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert tuple(gpu.name for gpu in found) == seen


def test_each_visible_gpu_has_its_own_type_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_driver(
        tmp_path, monkeypatch, "GPU-a1, NVIDIA H100 80GB HBM3, 81559", f"GPU-b2, {V100}, 16384", "GPU-c3, X, [N/A]"
    )
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "GPU-b2,0,2,MIG-d4"}) == (
        LocalGpu("GPU-b2", "V100-SXM2-16GB", 16_384 << 20, "GPU-b2"),
        LocalGpu("0", "H100-80GB-HBM3", 81_559 << 20, "GPU-a1"),
        LocalGpu("2", "X", 0, "GPU-c3"),
        LocalGpu("MIG-d4", "", 0, ""),
    )


def test_a_machine_without_a_driver_has_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}) == ()


def test_a_driver_without_gpus_says_so_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_driver(tmp_path, monkeypatch, "No devices were found")
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
