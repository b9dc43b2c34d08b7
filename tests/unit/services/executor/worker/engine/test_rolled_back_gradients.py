"""A step that is repeated after a loss begins without gradients of the failed one, also if train() clears them last."""

from functools import partial

import pytest
import torch
from torch import nn

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.bitwise_steps import BitwiseSteps
from elasticflow.services.executor.worker.engine.fast_steps import FastSteps
from elasticflow.services.executor.worker.engine.gradients_and_buffers import CarriedGradients
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.training_step import StepEngine
from elasticflow.services.executor.worker.engine.virtual_node_scheduler import LockstepScheduler
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import Stopwatch

CPU = torch.device("cpu")
MODES = ("bitwise", "fast")


def engine_of(mode: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> StepEngine:
    members = GenerationMembers(None, VirtualNodes(count=2 if mode == "bitwise" else 1, global_batch_size=4))
    if mode == "bitwise":
        return BitwiseSteps(
            model,
            optimizer,
            carried=CarriedGradients(model, optimizer),
            members=members,
            job_seed=0,
            cpu_throttle=CpuThrottle(1.0),
            stopwatch=Stopwatch(CPU),
            make_scheduler=partial(LockstepScheduler, on_start=lambda: None),
        )
    return FastSteps(
        model,
        carried=CarriedGradients(model, optimizer),
        members=members,
        device=CPU,
        job_seed=0,
        find_unused_parameters=False,
        cpu_throttle=CpuThrottle(1.0),
        stopwatch=Stopwatch(CPU),
    )


def weight_after_two_steps(mode: str, *, loses_a_peer: bool) -> torch.Tensor:
    model = nn.Linear(3, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def lose(*_: object) -> None:
        hook.remove()
        raise PeerLost("another worker is gone")

    steps = engine_of(mode, model, optimizer)
    calls = [train] * len(steps.computed)
    try:
        steps.run(0, calls)
        if loses_a_peer:
            hook = optimizer.register_step_pre_hook(lose)
            with pytest.raises(PeerLost):
                steps.run(1, calls)
            steps.roll_back()
        steps.run(1, calls)
    finally:
        steps.close()
    return model.weight.detach()


@pytest.mark.parametrize("mode", MODES)
def test_a_repeated_step_gives_the_bits_of_an_undisturbed_one(mode: str) -> None:
    assert weight_after_two_steps(mode, loses_a_peer=True).equal(weight_after_two_steps(mode, loses_a_peer=False))
