"""The fast mode waits for peers in its group only, where a wait fails or its thread is abandoned."""

# pyright: reportPrivateImportUsage=false

import copy
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
import torch._dynamo  # loading it while a wrapper is made would keep a reference to that wrapper and its group
import torch.distributed as dist
from torch import nn

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.fast_steps import FastSteps
from elasticflow.services.executor.worker.engine.gradients_and_buffers import CarriedGradients
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.peer_loss import PeerLost, ThreadAbandoned
from elasticflow.services.executor.worker.group.transport import Membership
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import Stopwatch
from tests.unit.services.executor.worker.group.test_groups import CPU, WAIT_S, NeverSums


class Worker:
    """One of `size` threads that form a group."""

    def __init__(self, store: dist.Store, rank: int, size: int, model: nn.Module, find_unused_parameters: bool) -> None:
        self.group = Group(Membership(store, rank=rank, size=size, timeout_s=WAIT_S), generation=1, device=CPU)
        self.steps = FastSteps(
            model,
            carried=CarriedGradients(model, torch.optim.SGD(model.parameters())),
            members=GenerationMembers(self.group, VirtualNodes(count=size, global_batch_size=4 * size)),
            device=CPU,
            job_seed=0,
            find_unused_parameters=find_unused_parameters,
            cpu_throttle=CpuThrottle(1.0),
            stopwatch=Stopwatch(CPU),
        )

    def step(self) -> None:
        self.steps.run(0, [lambda: self.steps.model(torch.randn(4, 3)).sum().backward()])


@contextmanager
def group_of_workers(*models: nn.Module, find_unused_parameters: bool = False) -> Iterator[list[Worker]]:
    """A worker for each model. Releases their groups last: no thread of gloo or with the GIL may do that."""
    store, size = dist.HashStore(), len(models)
    with ThreadPoolExecutor(size) as threads:
        made = [
            threads.submit(Worker, store, rank, size, model, find_unused_parameters)
            for rank, model in enumerate(models)
        ]
    workers = [each.result(WAIT_S) for each in made]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.steps.close()
            worker.group.release()


def assert_abandoned(waits: Worker, step: Future[None], silent: Worker) -> None:
    """In a step that waits for a silent peer, which closes its connections in the end."""
    while not waits.group.abandon_waiting_thread():
        assert not step.done()
        time.sleep(0.001)
    silent.group.close()
    with pytest.raises(ThreadAbandoned):
        step.result(WAIT_S)


def test_no_step_waits_for_a_sum_in_a_closed_group() -> None:
    """Equal parts on whole cores, which torch could sum by itself."""
    with group_of_workers(nn.Linear(3, 1)) as (worker,):
        worker.group._host.process_group = NeverSums(worker.group.close)  # type: ignore[assignment]
        worker.step()
        with pytest.raises(PeerLost):
            worker.group.check_received()


def test_a_thread_that_waits_for_missing_buffers_is_abandoned() -> None:
    with (
        ThreadPoolExecutor(1) as thread,
        group_of_workers(nn.BatchNorm1d(3), nn.BatchNorm1d(3)) as (silent, waits),
    ):
        step: Future[None] = thread.submit(waits.step)
        assert_abandoned(waits, step, silent)


def test_a_thread_that_waits_for_missing_buckets_is_abandoned() -> None:
    """The wrapper rebuilds them after the first step, and takes rank 0's."""
    with ThreadPoolExecutor(2) as threads, group_of_workers(nn.Linear(3, 1), nn.Linear(3, 1)) as workers:
        for step in [threads.submit(worker.step) for worker in workers]:
            step.result(WAIT_S)
        silent, waits = workers
        step = threads.submit(waits.step)
        assert_abandoned(waits, step, silent)


class NeverSumsUsedParameters(NeverSums):
    """Its sums of gradients complete at once."""

    def allreduce(self, tensors: list[torch.Tensor]) -> NeverSums:
        if not tensors[0].is_floating_point():
            return super().allreduce(tensors)
        at_once = NeverSums()
        at_once.sum.set_result(tensors)
        return at_once


def test_no_step_waits_for_the_used_parameters_in_a_closed_group() -> None:
    with group_of_workers(nn.Linear(3, 1), find_unused_parameters=True) as (worker,):
        worker.group._host.process_group = NeverSumsUsedParameters(worker.group.close)  # type: ignore[assignment]
        worker.step()
        with pytest.raises(PeerLost):
            worker.group.check_received()


class Chooses(nn.Module):
    """Rank 0 alone uses its first layer, and no rank its last."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[1](x if self.rank else self.layers[0](x))


def test_all_workers_know_which_parameters_any_worker_used() -> None:
    models = [Chooses(rank) for rank in range(2)]
    with ThreadPoolExecutor(2) as threads, group_of_workers(*models, find_unused_parameters=True) as workers:
        for _ in range(2):
            for step in [threads.submit(worker.step) for worker in workers]:
                step.result(WAIT_S)
        gradients = [[layer.weight.grad for layer in model.layers] for model in models]
        for first, second in zip(*(of_rank[:2] for of_rank in gradients), strict=True):
            assert torch.equal(first, second)  # type: ignore[arg-type]
        assert [of_rank[2] for of_rank in gradients] == [None, None]


def test_a_step_begins_with_the_buffers_of_rank_0() -> None:
    models = [nn.BatchNorm1d(3, momentum=0.0) for _ in range(2)]  # its statistics do not change
    with ThreadPoolExecutor(2) as threads, group_of_workers(*models) as workers:
        for rank, model in enumerate(models):
            torch.nn.init.constant_(model.get_buffer("running_mean"), rank + 5.0)
        for step in [threads.submit(worker.step) for worker in workers]:
            step.result(WAIT_S)
        assert [model.get_buffer("running_mean").tolist() for model in models] == [[5.0] * 3] * 2
        assert torch.equal(*(model.get_parameter("bias").grad for model in models))  # type: ignore[arg-type]


@pytest.mark.parametrize("find_unused_parameters", [False, True])
def test_gradients_lie_in_the_memory_that_is_summed(find_unused_parameters: bool) -> None:
    """A copy out of it would double the memory of the gradients."""
    models = [nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)) for _ in range(2)]
    with (
        ThreadPoolExecutor(2) as threads,
        group_of_workers(*models, find_unused_parameters=find_unused_parameters) as workers,
    ):
        for _ in range(2):  # the wrapper rebuilds its buckets after the first step
            for step in [threads.submit(worker.step) for worker in workers]:
                step.result(WAIT_S)
        for model in models:
            gradients = [parameter.grad for parameter in model.parameters()]
            assert len({each.untyped_storage().data_ptr() for each in gradients if each is not None}) == 1


def test_a_wrapper_of_the_next_generation_takes_gradients_that_lie_in_the_old_ones_memory() -> None:
    models = [nn.Linear(3, 1) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        for _ in range(2):
            with group_of_workers(*models) as workers:
                for step in [threads.submit(worker.step) for worker in workers]:
                    step.result(WAIT_S)
                one, other = (model.weight.grad for model in models)
                assert one is not None
                assert other is not None
                assert one.equal(other)


@pytest.mark.parametrize("sizes", [(8,), (4, 4), (5, 2, 1)])
def test_gradients_and_metrics_of_several_backward_passes_are_means_over_the_global_batch(
    sizes: tuple[int, ...],
) -> None:
    """A job that returns the loss of its last pass reports other samples at each number of workers."""
    points, store = torch.arange(24.0).reshape(8, 3), dist.HashStore()
    nodes = VirtualNodes(count=len(sizes), global_batch_size=8, counts_by_rank=(1,) * len(sizes), relative_sizes=sizes)

    alone = nn.Linear(3, 1)

    def work(rank: int) -> tuple[torch.Tensor, float]:
        model = copy.deepcopy(alone)
        group = Group(Membership(store, rank=rank, size=len(sizes), timeout_s=WAIT_S), generation=1, device=CPU)
        members = GenerationMembers(group, nodes)
        steps = FastSteps(
            model,
            members=members,
            carried=CarriedGradients(model, torch.optim.SGD(model.parameters())),
            device=CPU,
            job_seed=0,
            find_unused_parameters=False,
            cpu_throttle=CpuThrottle(1.0),
            stopwatch=Stopwatch(CPU),
        )

        def train() -> float:
            losses = []
            for half in points[members.computed[0].samples].tensor_split(2):
                part = len(half) / len(points[members.computed[0].samples])
                loss = steps.model(half).square().sum() / max(len(half), 1) * part
                loss.backward()
                losses.append(loss.item())
            return sum(losses)

        (loss,) = steps.run(0, [train])
        (mean,) = members.means([[loss]])
        steps.close()
        group.release()
        assert model.weight.grad is not None
        return model.weight.grad.clone(), mean

    with ThreadPoolExecutor(len(sizes)) as threads:
        results = list(threads.map(work, range(len(sizes))))
    loss = alone(points).square().mean()
    loss.backward()
    for gradient, mean in results:
        torch.testing.assert_close(gradient, alone.weight.grad)
        assert mean == pytest.approx(loss.item())
