"""A joining worker's dry step: its first real step compiles nothing more, and nothing else of it remains."""

import random  # noqa: TID251 - its state is compared
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
from elasticflow.services.executor.worker.steps.dry_step import dry_step_pays, run_dry_step
from elasticflow.services.executor.worker.steps.job_objects import JobObjects, make_job_objects
from elasticflow.services.executor.worker.steps.virtual_nodes import VirtualNodes
from elasticflow.shared.messages.job_spec import JobSpec

CPU = torch.device("cpu")
SPEC = JobSpec(training_function="a:B", global_batch_size=11, max_iterations=10, deadline_in_s=60.0)
VIRTUAL_NODES = VirtualNodes(count=4, global_batch_size=11)  # of 2 and 3 samples
BLOCK = VIRTUAL_NODES.computed_by(0, 2)


class Network(nn.Sequential):
    """torch compiles no classes of its own alone."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input)


class Job(ElasticJob):
    """With all kinds of state; counts the graphs that its model compiles."""

    def __init__(self) -> None:
        super().__init__()
        self.graphs: list[Any] = []
        self.sizes: list[int] = []
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
