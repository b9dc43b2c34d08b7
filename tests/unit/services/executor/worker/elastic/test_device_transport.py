"""Which transport moves tensors between CPU slots, GPUs, and both. No GPU is used."""

# pyright: reportPrivateImportUsage=false

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.elastic import device_transport as transports
from elasticflow.services.executor.worker.elastic import groups
from elasticflow.services.executor.worker.elastic.device_transport import NO_GPU, device_transport
from elasticflow.services.executor.worker.elastic.groups import Group
from elasticflow.services.executor.worker.elastic.staged_transport import StagedTransport

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
ONE, OTHER = b"1" * 16, b"2" * 16


@pytest.mark.parametrize(
    ("device", "gpus", "transport"),
    [
        (CPU, [NO_GPU, NO_GPU], "gloo"),
        (CPU, [NO_GPU, ONE], "gloo"),
        (GPU, [NO_GPU, ONE], "staged"),
        (GPU, [ONE, ONE], "staged"),
        (GPU, [ONE, OTHER, NO_GPU], "staged"),
        (GPU, [ONE, OTHER], "nccl"),
    ],
)
def test_workers_choose_the_same_kind_of_exchange(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, gpus: list[bytes], transport: str
) -> None:
    gloo: Any = object()
    monkeypatch.setattr(transports, "StagedTransport", lambda *_: "staged")
    monkeypatch.setattr(transports, "NcclTransport", lambda *_, **__: "nccl")
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    chosen = device_transport(
        gloo, dist.HashStore(), 0, len(gpus), device=device, gpus=gpus, timeout_s=1.0, aborted=threading.Event()
    )
    assert chosen == (gloo if transport == "gloo" else transport)


def test_a_cpu_slot_and_a_gpu_form_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU once gathered names that a CPU slot did not send, and waited for them."""
    properties = SimpleNamespace(uuid=SimpleNamespace(bytes=ONE))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    made = list[str]()
    monkeypatch.setattr(transports, "StagedTransport", lambda *given: made.append("staged") or StagedTransport(*given))
    store = dist.HashStore()

    def run(rank: int) -> float:
        group = Group(store, generation=1, rank=rank, size=2, device=(CPU, GPU)[rank], timeout_s=20.0)
        summed = group.all_gather(torch.tensor([rank + 1.0]))
        group.close()
        return sum(each.item() for each in summed)

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(run, range(2))) == [3.0, 3.0]
    assert made == ["staged"]
    assert groups.gpu_of(CPU) == NO_GPU
