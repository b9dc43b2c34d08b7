"""A step that is computed up to its optimizer's step and undone leaves nothing behind, and gives its gradients."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.additional_state import AdditionalState
from elasticflow.services.executor.worker.engine.bitwise_steps import SYNC_POINTS, BitwiseSteps
from elasticflow.services.executor.worker.engine.gradients_and_buffers import CarriedGradients
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.virtual_node_scheduler import LockstepScheduler, SequentialScheduler
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import Stopwatch

LOCKSTEP = partial(LockstepScheduler, on_start=lambda: None)
SEQUENTIAL = partial(SequentialScheduler, begin_call=lambda is_last: SYNC_POINTS)


def trained(make_scheduler: Any, rehearsed: set[int], *, steps_every: int = 1) -> tuple[Any, list[list[torch.Tensor]]]:
    """All that a step changes after some steps, and the gradients of each backward pass."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    additional = AdditionalState({"schedule": schedule}, optimizer)
    steps = BitwiseSteps(
        model,
        optimizer,
        carried=CarriedGradients(model, optimizer),
        members=GenerationMembers(None, VirtualNodes(count=2, global_batch_size=8)),
        job_seed=0,
        cpu_throttle=CpuThrottle(1.0),
        stopwatch=Stopwatch(torch.device("cpu")),
        make_scheduler=make_scheduler,
        additional=additional,
    )

    def train(iteration: int, part: int) -> None:
        points = torch.randn(4, 3, generator=torch.Generator().manual_seed(10 * iteration + part))
        model(points).square().mean().backward()
        if iteration % steps_every == steps_every - 1:
            optimizer.step()
            if make_scheduler is LOCKSTEP:
                schedule.step()
            optimizer.zero_grad()

    noted: list[list[torch.Tensor]] = []
    steps.note_gradients = lambda _, gradients: noted.append([each.clone() for each in gradients if each is not None])
    for iteration in range(6):
        calls: list[Callable[[], None]] = [partial(train, iteration, part) for part in range(2)]
        if iteration in rehearsed:
            before = additional.snapshot()
            steps.rehearse(iteration, calls)
            steps.roll_back()
            additional.restore(before)
        steps.run(iteration, calls)
        steps.combine_buffers([index for index, part in enumerate(steps.changed_buffers()[0]) if part > 0])
    steps.close()
    return [model.state_dict(), optimizer.state_dict(), schedule.state_dict()], noted


@pytest.mark.parametrize(
    ("make_scheduler", "steps_every"),
    [(LOCKSTEP, 1), (SEQUENTIAL, 1), (LOCKSTEP, 2)],
    ids=["class", "script", "every 2"],
)
def test_rehearsed_steps_end_with_the_same_bits_and_have_the_same_gradients(make_scheduler, steps_every):
    expected, gradients = trained(make_scheduler, set(), steps_every=steps_every)
    rehearsed, noted = trained(make_scheduler, {2, 3, 5}, steps_every=steps_every)
    assert_same(rehearsed, expected)
    again = [gradients[step] for step in (0, 1, 2, 2, 3, 3, 4, 5, 5)]
    assert_same(noted, again)
    assert not torch.equal(gradients[2][0], gradients[3][0])


def assert_same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=0)
