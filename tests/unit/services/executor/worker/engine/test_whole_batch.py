"""Values of the whole batch, further optimizers and scaled gradients: four virtual nodes compute what one computes."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler

import elasticflow
from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.additional_state import AdditionalState
from elasticflow.services.executor.worker.engine.bitwise_steps import BitwiseSteps
from elasticflow.services.executor.worker.engine.gradient_scaling import with_scalers
from elasticflow.services.executor.worker.engine.gradients_and_buffers import CarriedGradients
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.user_code_checks import begin_call
from elasticflow.services.executor.worker.engine.virtual_node_scheduler import LockstepScheduler
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import Stopwatch

CPU = torch.device("cpu")
BATCH = 13
POINTS = torch.randn(BATCH, 4, generator=torch.Generator().manual_seed(0))

Train = Callable[[torch.Tensor, nn.Module, torch.optim.Optimizer], Any]


@pytest.fixture(autouse=True)
def _torch_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """with_scalers replaces methods in its process."""
    monkeypatch.setattr(GradScaler, "scale", GradScaler.scale)
    monkeypatch.setattr(GradScaler, "unscale_", GradScaler.unscale_)
    return


def trained(
    train: Train, *, num_virtual_nodes: int, stateful: Mapping[str, Any] | None = None, rate: float = 0.1
) -> tuple[torch.Tensor, list[list[Any]]]:
    """The weights after three steps on the same batch, and what the calls of each step returned."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    steps = BitwiseSteps(
        model,
        optimizer,
        members=GenerationMembers(None, VirtualNodes(count=num_virtual_nodes, global_batch_size=BATCH)),
        carried=CarriedGradients(model, optimizer),
        job_seed=0,
        cpu_throttle=CpuThrottle(1.0),
        stopwatch=Stopwatch(CPU),
        make_scheduler=partial(LockstepScheduler, on_start=lambda: None),
        additional=AdditionalState(with_scalers(stateful or {}, optimizer, CPU), optimizer),
    )

    def call(samples: slice) -> Any:
        begin_call()
        return train(POINTS[samples], model, optimizer)

    try:
        returned = [steps.run(i, [partial(call, each.samples) for each in steps.computed]) for i in range(3)]
    finally:
        steps.close()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]), returned


def contrastive(points: torch.Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Of two views, with a term of each sample alone, and one of the gathered rows."""
    optimizer.zero_grad()
    both = model(torch.cat([points, points.square()]))
    one, other = both.chunk(2)
    everywhere = elasticflow.gather(one) @ elasticflow.gather(other).T
    assert everywhere.shape == (BATCH, BATCH)
    loss = nn.functional.cross_entropy(everywhere, torch.arange(BATCH)) + one.square().mean()
    loss.backward()
    optimizer.step()


def test_the_gradient_of_a_loss_of_all_samples_is_that_of_one_device() -> None:
    alone, _ = trained(contrastive, num_virtual_nodes=1)
    together, _ = trained(contrastive, num_virtual_nodes=4)
    torch.testing.assert_close(together, alone)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):  # outside of a job
        contrastive(POINTS, model, optimizer)
    plain = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    torch.testing.assert_close(alone, plain)


def test_the_mean_is_that_of_the_batch_wherever_it_is_asked_for_and_gradients_keep_their_changes() -> None:
    def train(points: torch.Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[float, float]:
        optimizer.zero_grad()
        loss = model(points).square().mean()
        before = elasticflow.mean(loss)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        behind = elasticflow.mean(loss)
        optimizer.step()
        return before, behind

    alone, of_one = trained(train, num_virtual_nodes=1)
    together, of_four = trained(train, num_virtual_nodes=4)
    torch.testing.assert_close(together, alone)
    for (only,), parts in zip(of_one, of_four, strict=True):
        assert len({value for part in parts for value in part}) == 1
        assert parts[0][0] == pytest.approx(only[0])


def test_a_tensor_that_depends_on_a_gathered_one_is_not_gathered() -> None:
    def train(points: torch.Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        everywhere = elasticflow.gather(model(points))
        elasticflow.gather(everywhere.square()).mean().backward()
        optimizer.step()

    with pytest.raises(TrainingFailed, match="gather once, as late as possible"):
        trained(train, num_virtual_nodes=4)


def test_parts_that_change_additional_state_by_their_own_samples_are_named() -> None:
    class Counter:
        def __init__(self) -> None:
            self.seen = 0.0

        def state_dict(self) -> dict[str, float]:
            return {"seen": self.seen}

        def load_state_dict(self, state: Mapping[str, float]) -> None:
            self.seen = state["seen"]

    counter = Counter()

    def train(points: torch.Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(points).square().mean().backward()
        optimizer.step()
        counter.seen += float(points.sum())

    with pytest.raises(TrainingFailed, match="changed counter in another way for one part"):
        trained(train, num_virtual_nodes=4, stateful={"counter": counter})


def test_scaled_gradients_are_unscaled_once_and_all_calls_skip_the_same_steps() -> None:
    def weights_with(num_virtual_nodes: int) -> tuple[torch.Tensor, list[list[float]]]:
        scaler = GradScaler("cpu", growth_interval=1)

        def train(points: torch.Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
            optimizer.zero_grad()
            overflow = float("inf") if scaler.get_scale() == 2.0**16 else 1.0
            scaler.scale(overflow * model(points).square().mean()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return scaler.get_scale()

        return trained(train, num_virtual_nodes=num_virtual_nodes, stateful={"scaler": scaler})

    alone, of_one = weights_with(1)
    together, of_four = weights_with(4)
    torch.testing.assert_close(together, alone)
    assert [len({*scales}) for scales in of_four] == [1, 1, 1]
    assert [scales[0] for scales in of_four] == [scale for (scale,) in of_one]
    assert [scales[0] for scales in of_four] == [2.0**15, 2.0**16, 2.0**15], "it skips, steps, and skips again"


def test_a_scaler_that_outlives_a_call_is_state_of_the_job() -> None:
    scaler = GradScaler("cpu")

    def train(points: torch.Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        scaler.scale(model(points).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    with pytest.raises(TrainingFailed, match=r"let stateful\(\) return it"):
        trained(train, num_virtual_nodes=1)
