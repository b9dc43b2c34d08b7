"""A joining worker's dry step: its first real step compiles nothing more, and nothing else of it remains."""

import random  # noqa: TID251 - its state is compared
import warnings
from collections.abc import Iterator, Mapping
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.engine.sensitive import digest
from elasticflow import ElasticJob
from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.job_state import JobObjects, make_job_objects
from elasticflow.services.executor.worker.engine.training_function import in_users_code
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.loop import worker_setup as dry_steps
from elasticflow.services.executor.worker.loop.worker_setup import (
    dry_step_pays,
    needs_kernel_trial,
    operation_without_repeatable_kernel,
    run_dry_step,
)
from elasticflow.services.executor.worker.process.device import other_kernels_are_allowed
from elasticflow.shared.messages.job_spec import JobSpec

CPU = torch.device("cpu")
SPEC = JobSpec(training_function="a:B", global_batch_size=11, max_iterations=10, deadline_in_s=60.0)
VIRTUAL_NODES = VirtualNodes(count=4, global_batch_size=11)  # of 2 and 3 samples
BLOCK = VIRTUAL_NODES.computed_by(0, 2)


class Network(nn.Sequential):
    """torch compiles no classes of its own alone."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input)


class Sizes(list[int]):
    """What calls have noted; no plain state of the job."""


class Job(ElasticJob):
    """With all kinds of state; counts the graphs that its model compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: list[Any] = []
        self.sizes = Sizes()
        self.num_calls = 0

    def init_model(self) -> nn.Module:
        model = Network(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        model.compile(backend=self.compile)
        return model

    def compile(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        del inputs
        self.graphs.append(graph)
        return graph

    def init_dataset(self) -> TensorDataset:
        return TensorDataset(torch.randn(33, 4))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(model.parameters())
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return optimizer

    def stateful(self) -> Mapping[str, Any]:
        return {"schedule": self.schedule}

    def train(self, batch: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        self.num_calls += 1
        self.sizes.append(len(batch[0]))
        optimizer.zero_grad()
        loss = model(batch[0]).square().mean() * (1 + float(np.random.rand()) + random.random())
        loss.backward()
        optimizer.step()
        self.schedule.step()
        return loss


class Fails(Job):
    def train(self, batch: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        super().train(batch, model, optimizer)
        raise ValueError("no such label")


@pytest.fixture(autouse=True)
def _compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def objects_of(job: Any) -> JobObjects:
    return make_job_objects(job, SPEC, CPU)


def dry_step(objects: JobObjects) -> None:
    copy_context().run(run_dry_step, objects, VIRTUAL_NODES, BLOCK, CPU, 7)


def state_of(objects: JobObjects) -> list[Any]:
    attributes = {name: value for name, value in vars(objects.function).items() if isinstance(value, int | bool)}
    gradients = [parameter.grad for parameter in objects.model.parameters()]
    generators = [digest(torch.get_rng_state()), str(np.random.get_state()), random.getstate()]
    states = {name: each.state_dict() for name, each in objects.additional.objects.items()}
    model, optimizer = digest(dict(objects.model.state_dict())), objects.optimizer.state_dict()
    return [model, optimizer, states, gradients, generators, attributes]


@pytest.mark.parametrize("job_class", [Job, Fails])
def test_a_dry_step_changes_no_state(job_class: type[Job]) -> None:
    job = job_class()
    objects = objects_of(job)
    before = state_of(objects)
    with capture_logs() as logs:
        dry_step(objects)
    assert state_of(objects) == before
    assert job.sizes, "train() was called"
    assert [entry["event"] for entry in logs] == (["dry_step_failed"] if job_class is Fails else [])


def test_the_first_real_step_compiles_nothing_more() -> None:
    job = Job()
    objects = objects_of(job)
    dry_step(objects)
    assert sorted(job.sizes) == sorted({part.samples.stop - part.samples.start for part in BLOCK}) == [2, 3]
    num_graphs = len(job.graphs)
    for size in (2, 3):
        objects.model(torch.zeros(size, 4))
    assert len(job.graphs) == num_graphs > 0


def test_it_pays_on_a_gpu_and_for_a_compiled_model() -> None:
    objects = objects_of(Job())
    assert dry_step_pays(objects, CPU)
    objects.model._compiled_call_impl = None
    assert not dry_step_pays(objects, CPU)
    assert dry_step_pays(objects, torch.device("cuda", 0))


class Puts(Job):
    """torch has no repeatable kernel for one of its operations, on any device."""

    puts_from = 0  # samples of a part

    def train(self, batch: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        if len(batch[0]) >= self.puts_from:
            torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))
        return super().train(batch, model, optimizer)


class PutsInSomeBatches(Puts):
    puts_from = 3


class AllowsOtherKernels(Puts):
    def init_model(self) -> nn.Module:
        torch.use_deterministic_algorithms(True, warn_only=True)
        return super().init_model()


@pytest.fixture
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def choose(_: torch.device) -> None:
        torch.use_deterministic_algorithms(True, warn_only=other_kernels_are_allowed())

    monkeypatch.setattr(dry_steps, "choose_repeatable_kernels", choose)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_as_on_a_gpu")
@pytest.mark.parametrize(
    ("job_class", "is_strict", "operation"),
    [
        (Job, True, ""),
        (Fails, True, ""),
        (Puts, False, "put_ does not have a deterministic implementation"),
        (AllowsOtherKernels, False, ""),  # its user knows
        (PutsInSomeBatches, True, ""),  # all workers decide on the first part, of two samples
    ],
)
def test_all_workers_allow_other_kernels_if_the_first_part_of_a_batch_needs_them(
    job_class: type[Job], is_strict: bool, operation: str
) -> None:
    objects = objects_of(job_class())
    before = state_of(objects)
    with warnings.catch_warnings(action="ignore"):
        found = copy_context().run(operation_without_repeatable_kernel, objects, VIRTUAL_NODES, CPU, 7)
    assert found == operation
    assert other_kernels_are_allowed() is not is_strict
    assert state_of(objects) == before


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_an_operation_of_a_later_step_is_refused_with_what_to_write() -> None:
    dry_steps.choose_repeatable_kernels(CPU)
    with (
        pytest.raises(TrainingFailed, match=r"put_ does not .* in iteration 7: use another operation, or let init"),
        in_users_code("in iteration 7"),
    ):
        torch.zeros(2).put_(torch.tensor([0]), torch.ones(1))


def test_only_bitwise_jobs_on_gpus_try_their_kernels() -> None:
    objects = objects_of(Job())
    assert needs_kernel_trial(objects, torch.device("cuda", 0))
    assert not needs_kernel_trial(objects, CPU)
    objects.function.reproducible = "fast"
    assert not needs_kernel_trial(objects, torch.device("cuda", 0))
