"""How often the engine reads a result of the device in a step, whatever the model and its virtual nodes."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.bitwise_steps import BitwiseSteps
from elasticflow.services.executor.worker.engine.gradients_and_buffers import CarriedGradients
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.virtual_node_scheduler import LockstepScheduler
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import Stopwatch

READS = ("aten.equal.default", "aten._local_scalar_dense.default", "aten.is_nonzero.default", "aten.item.default")


class Reads(TorchDispatchMode):
    """Operations that return a number of the device to the host, in one thread."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) in READS:
            self._seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    seen: list[str] = []
    to_list = torch.Tensor.tolist

    def counted(tensor: torch.Tensor) -> Any:
        if tensor.is_floating_point() or tensor.dtype is torch.bool:  # flags on the host are bytes
            seen.append("tolist")
        return to_list(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", counted)
    with Reads(seen):
        yield seen


@pytest.mark.parametrize(("num_layers", "count"), [(1, 2), (10, 2), (10, 8)])
def test_a_step_reads_no_result_of_the_device(reads: list[str], num_layers: int, count: int) -> None:
    model = nn.Sequential(*[nn.BatchNorm1d(4) for _ in range(num_layers)])
    steps = BitwiseSteps(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        carried=CarriedGradients(model, torch.optim.SGD(model.parameters(), lr=0.1)),
        members=GenerationMembers(None, VirtualNodes(count=count, global_batch_size=2 * count)),
        job_seed=0,
        cpu_throttle=CpuThrottle(1.0),
        stopwatch=Stopwatch(torch.device("cpu")),
        make_scheduler=partial(LockstepScheduler, on_start=lambda: Reads(reads).__enter__()),
    )

    def train() -> None:
        model(torch.randn(2, 4)).sum().backward()
        steps._optimizer.step()

    try:
        for iteration in range(3):
            del reads[:]
            steps.run(iteration, [train] * count)
            steps.changed_buffers()
            assert reads == [] or iteration == 0, "the first step compares values of parameters"
            steps.combine_buffers([])
    finally:
        steps.close()
