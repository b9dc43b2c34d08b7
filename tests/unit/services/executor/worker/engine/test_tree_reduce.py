"""Sums along the tree within one worker."""

from functools import partial

import pytest
import torch
from torch import nn

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.bitwise_steps import BitwiseSteps
from elasticflow.services.executor.worker.engine.gradients_and_buffers import CarriedGradients
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.tree_reduce import TensorSum
from elasticflow.services.executor.worker.engine.virtual_node_scheduler import LockstepScheduler
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import Stopwatch

BATCH_SIZE = 24


def sum_of(virtual_nodes: VirtualNodes, *, in_place: bool) -> torch.Tensor:
    """Of one tensor for each micro-batch; every third has none."""
    summed = TensorSum(virtual_nodes, None)
    for micro_batch in virtual_nodes.computed_by(0, 1):
        chance = torch.Generator().manual_seed(micro_batch.samples.start)
        mine = torch.randn(100, generator=chance) if micro_batch.samples.start % 3 != 1 else None
        partial_sum = summed.take_partial_sum(micro_batch) if in_place else None
        if partial_sum is not None and partial_sum[0] is not None and mine is not None:
            mine = partial_sum[0].add_(mine)
        elif partial_sum is not None and mine is None:
            mine = partial_sum[0]
        summed.push(micro_batch, [mine])
    (total,) = summed.finish([torch.empty(100)])
    assert total is not None
    return total


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 8, 16])
@pytest.mark.parametrize("micro_batch_size", [0, 1, 2])
def test_adding_in_place_gives_the_same_bits_as_adding_later(count: int, micro_batch_size: int) -> None:
    cut = VirtualNodes(count=count, global_batch_size=BATCH_SIZE, micro_batch_size=micro_batch_size)
    assert torch.equal(sum_of(cut, in_place=True), sum_of(cut, in_place=False))


def test_a_hook_of_the_user_sees_the_gradient_of_one_virtual_node() -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    seen: list[float] = []

    def note(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        seen.append(parameter.grad.item())

    model.weight.register_post_accumulate_grad_hook(note)
    virtual_nodes = VirtualNodes(count=4, global_batch_size=4)
    steps = BitwiseSteps(
        model,
        optimizer,
        carried=CarriedGradients(model, optimizer),
        members=GenerationMembers(None, virtual_nodes),
        job_seed=0,
        cpu_throttle=CpuThrottle(1.0),
        stopwatch=Stopwatch(torch.device("cpu")),
        make_scheduler=partial(LockstepScheduler, on_start=lambda: None),
    )
    try:
        steps.run(0, [lambda: model(torch.ones(1, 1)).mean().backward()] * 4)
    finally:
        steps.close()
    assert seen == [0.25] * 4
