"""A worker runs on the cores of its GPU's NUMA node, where the machine has several and it may use them."""

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from elasticflow.services.executor.worker.process.device import bind_to_numa_node

GPU = "0000:3b:00.0"


def system_of(folder: Path, *, num_nodes: int, node: str = "1", cores: str = "2-3,6\n") -> Path:
    """As the kernel shows it in /sys."""
    for number in range(num_nodes):
        (folder / f"devices/system/node/node{number}").mkdir(parents=True)
    gpu = folder / "bus/pci/devices" / GPU
    gpu.mkdir(parents=True)
    (gpu / "numa_node").write_text(node)
    (gpu / "local_cpulist").write_text(cores)
    return folder


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The cores to which this process, which may use four, was bound."""
    bound: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 3, 4})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: bound.append(cores))
    return bound


def test_it_uses_those_of_its_cores_that_are_next_to_the_gpu(tmp_path: Path, bound: list[set[int]]) -> None:
    bind_to_numa_node(GPU, system_of(tmp_path, num_nodes=2))
    assert bound == [{2, 3}]


@pytest.mark.parametrize(("num_nodes", "node"), [(1, "0"), (2, "-1")])
def test_one_numa_node_or_an_unknown_one_binds_nothing(
    tmp_path: Path, bound: list[set[int]], num_nodes: int, node: str
) -> None:
    bind_to_numa_node(GPU, system_of(tmp_path, num_nodes=num_nodes, node=node))
    assert not bound


def test_a_system_that_does_not_show_the_gpu_binds_nothing(tmp_path: Path, bound: list[set[int]]) -> None:
    bind_to_numa_node("0000:99:00.0", system_of(tmp_path, num_nodes=2))
    assert not bound


def test_a_gpu_beside_other_cores_is_named(tmp_path: Path, bound: list[set[int]]) -> None:
    with capture_logs() as logs:
        bind_to_numa_node(GPU, system_of(tmp_path, num_nodes=2, cores="8-9"))
    assert not bound
    assert [(entry["event"], entry["cores"]) for entry in logs] == [("gpu_is_on_another_numa_node", [8, 9])]
