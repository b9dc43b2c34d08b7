"""Under the bitwise mode, torch.compile makes a graph for each shape, whatever shapes came before, in all threads."""

import sys
import threading
from contextvars import copy_context
from functools import partial
from types import ModuleType

import pytest
import torch
from torch import nn

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.bitwise_steps import BitwiseSteps
from elasticflow.services.executor.worker.engine.cooperative_thread import CooperativeThread
from elasticflow.services.executor.worker.engine.gradients_and_buffers import CarriedGradients
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.training_function import in_users_code
from elasticflow.services.executor.worker.engine.virtual_node_scheduler import LockstepScheduler
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.compiled_models import MOST_SHAPES
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import Stopwatch, choose_repeatable_kernels

pytestmark = pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # of the compiler's import

NOT_COMPILED_AHEAD = 2  # torch has no variable sizes below


def compiled_graphs(*sizes: int) -> list[str]:
    """The graphs that a cooperative thread compiles for these numbers of samples, one after another."""
    graphs: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        del inputs
        graphs.append(str([node.meta["example_value"] for node in module.graph.nodes if node.op == "placeholder"]))
        return module

    def compute() -> None:
        double = torch.compile(lambda batch: 2 * batch, backend=backend)
        with in_users_code("in iteration 7"):
            for size in sizes:
                double(torch.zeros(size, 4))

    def in_worker() -> None:
        choose_repeatable_kernels(torch.device("cpu"))
        thread = CooperativeThread("virtual-node")
        thread.resume(compute)
        thread.close()

    torch._dynamo.reset()
    copy_context().run(in_worker)  # other tests keep torch's settings
    return graphs


def test_the_order_of_shapes_does_not_change_their_graphs() -> None:
    two_first, three_first = compiled_graphs(2, 3, 2), compiled_graphs(3, 2)
    assert len(two_first) == 2
    assert two_first == three_first[::-1]


def test_more_shapes_than_torch_keeps_are_refused_with_the_way_out() -> None:
    sizes = range(NOT_COMPILED_AHEAD, NOT_COMPILED_AHEAD + MOST_SHAPES)
    assert len(compiled_graphs(*sizes)) == MOST_SHAPES
    with pytest.raises(TrainingFailed, match=r"more than 64 shapes in iteration 7.*pad the batches.*\"fast\""):
        compiled_graphs(*sizes, sizes.stop)


class Graphs(ModuleType):
    """torch's module of CUDA graphs, in the version before and after it worked in other threads than the main one."""

    def __init__(self, version: str) -> None:
        super().__init__("torch._inductor.cudagraph_trees")
        self.local = threading.local()
        calls = {
            "2.11": "def call(): assert False",
            "2.13": "def call(): local.tree_manager_containers = {0: 'graphs'}",
        }
        exec(calls[version], vars(self))


@pytest.mark.parametrize("version", ["2.11", "2.13"])
def test_cuda_graphs_are_refused_in_the_first_step(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setitem(sys.modules, "torch._inductor.cudagraph_trees", graphs := Graphs(version))
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters())
    steps = BitwiseSteps(
        model,
        optimizer,
        carried=CarriedGradients(model, optimizer),
        members=GenerationMembers(None, VirtualNodes(count=2, global_batch_size=2)),
        job_seed=0,
        cpu_throttle=CpuThrottle(1.0),
        stopwatch=Stopwatch(torch.device("cpu")),
        make_scheduler=partial(LockstepScheduler, on_start=lambda: None),
    )

    def train() -> None:
        graphs.call()
        model(torch.ones(1, 2)).sum().backward()

    with (
        pytest.raises(TrainingFailed, match=r"CUDA graphs of torch.compile .* \"fast\""),
        in_users_code("in iteration 0"),
    ):
        steps.run(0, [train] * 2)
    steps.roll_back()
    steps.close()
