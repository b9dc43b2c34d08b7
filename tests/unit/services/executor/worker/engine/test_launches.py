"""How many operations the engine launches in a step beside those of train(), and which of them copy tensors.

On a GPU each takes the host some microseconds, so their number must not grow with the layers of the model, except for
the one addition that autograd makes for a parameter onto the gradient of another virtual node, and the one copy of a
gradient to the memory that is sent, which replaces such an addition.
"""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.bitwise_steps import BitwiseSteps, each_written_to
from elasticflow.services.executor.worker.engine.gradients_and_buffers import CarriedGradients
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.tree_reduce import TensorSum
from elasticflow.services.executor.worker.engine.virtual_node_scheduler import LockstepScheduler
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.transport import Membership
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import Stopwatch

CPU = torch.device("cpu")
WAIT_S = 60.0
ADDITION = "aten.add_.Tensor"
COPIES = ("aten.copy_.default", "aten.clone.default", "aten._to_copy.default", "aten._foreach_copy_.default")


class Launches(TorchDispatchMode):
    """Counts operations that compute, in one thread: no views, and no memory that nothing is written to."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name.startswith("aten.") and not func.is_view and "aten.empty" not in name:
            self._seen[name] += 1
        return func(*args, **(kwargs or {}))


class Trained:
    """A model of many layers, and its train()."""

    def __init__(self, num_layers: int, is_normalized: bool) -> None:
        layers = [[nn.Linear(4, 4), *([nn.BatchNorm1d(4)] if is_normalized else [])] for _ in range(num_layers)]
        self.model = nn.Sequential(*[each for layer in layers for each in layer])
        self.num_parameters = len(list(self.model.parameters()))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(2, 4)).sum().backward()
        self.optimizer.step()


def launches_of_train(trained: Trained) -> tuple[Counter[str], Counter[str]]:
    """Of the passes, and of the optimizer's step."""
    passes, step = Counter[str](), Counter[str]()
    with Launches(passes):
        trained.optimizer.zero_grad()
        trained.model(torch.ones(2, 4)).sum().backward()
    with Launches(step):
        trained.optimizer.step()
    return passes, step


def launches_of_engine(trained: Trained, count: int) -> Counter[str]:
    """In a steady step of a worker that is alone."""
    seen = Counter[str]()
    virtual_nodes = VirtualNodes(count=count, global_batch_size=2 * count)
    steps = BitwiseSteps(
        trained.model,
        trained.optimizer,
        carried=CarriedGradients(trained.model, trained.optimizer),
        members=GenerationMembers(None, virtual_nodes),
        job_seed=0,
        cpu_throttle=CpuThrottle(1.0),
        stopwatch=Stopwatch(CPU),
        make_scheduler=partial(LockstepScheduler, on_start=lambda: Launches(seen).__enter__()),
    )
    try:
        with Launches(seen):
            for iteration in range(3):
                seen.clear()
                steps.run(iteration, [trained.train] * count)
                steps.changed_buffers()
                steps.combine_buffers([])
    finally:
        steps.close()
    passes, step = launches_of_train(trained)
    for name, number in passes.items():
        seen[name] -= number * count
    seen.subtract(step)
    return +seen


def launches_of_sum(num_layers: int, count: int, size: int) -> list[Counter[str]]:
    """By rank: in a steady sum of gradients between workers, with the backward passes that it accompanies."""
    store = dist.HashStore()
    virtual_nodes = VirtualNodes(count=count, global_batch_size=2 * count)

    def run(rank: int) -> Counter[str]:
        group = Group(Membership(store, rank=rank, size=size, timeout_s=WAIT_S), generation=1, device=CPU)
        layers = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(num_layers)])
        like = list(layers.parameters())
        summed, seen = TensorSum(virtual_nodes, group), Counter[str]()
        try:
            with Launches(seen):
                for _ in range(3):
                    seen.clear()
                    for micro_batch in virtual_nodes.computed_by(rank, size):
                        layers.zero_grad()
                        shared_sum = summed.begin_last(micro_batch, like)
                        with each_written_to(shared_sum, like):
                            layers(torch.ones(2, 4)).sum().backward()
                        with torch.no_grad():
                            summed.push(micro_batch, [parameter.grad for parameter in like])
                    with torch.no_grad():
                        summed.finish(like)
        finally:
            group.barrier()
            group.release()
        return seen

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


def copies_in(seen: Counter[str]) -> int:
    return sum(seen[name] for name in COPIES)


@pytest.mark.parametrize(
    ("is_normalized", "count", "others", "copies"),
    [
        (False, 2, 2 + 3, 1),  # one copy of all gradients, for the calls after the first
        (False, 8, 8 + 6, 1),
        (True, 2, 31, 13),  # the buffers: 4 copies for each virtual node, and 4
        (True, 8, 82, 37),
    ],
)
@pytest.mark.parametrize("num_layers", [2, 20])
def test_the_engines_launches_do_not_grow_with_the_layers(
    num_layers: int, is_normalized: bool, count: int, others: int, copies: int
) -> None:
    trained = Trained(num_layers, is_normalized)
    seen = launches_of_engine(trained, count)
    assert seen[ADDITION] == trained.num_parameters * count // 2, "the others are added as lists"
    assert (seen.total() - seen[ADDITION], copies_in(seen)) == (others, copies)


@pytest.mark.parametrize(("size", "count"), [(2, 8), (2, 2), (4, 8)])
@pytest.mark.parametrize("num_layers", [2, 20])
def test_a_gradient_reaches_the_memory_that_is_sent_by_one_launch_for_each_pass_before(
    num_layers: int, size: int, count: int
) -> None:
    local = count // size
    for seen in launches_of_sum(num_layers, count, size):
        written = seen["aten.copy_.default"] + seen["aten.add.out"] + seen["aten.add.Tensor"]
        depth = max(1, local.bit_length() - 1)  # subtrees to the left of the last pass, or none
        assert written == num_layers * depth + size - 1, "and the sums of what the workers have sent"
        assert copies_in(seen) == (num_layers if local == 1 else 0)
