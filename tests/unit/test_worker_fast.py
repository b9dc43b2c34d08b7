"""The fast mode waits for others in its group alone: whoever waits in vain is told there, or left behind."""

# pyright: reportPrivateImportUsage=false

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
import torch._dynamo  # whoever loads it while a wrapper is made has that wrapper kept, and its group with it
import torch.distributed as dist
from torch import nn

from services.executor.worker.fast import FastSteps
from services.executor.worker.groups import Group, LeftBehind, PeerLost
from services.executor.worker.membership import Membership
from services.executor.worker.pacing import Pacer
from services.executor.worker.stopwatch import Stopwatch
from services.executor.worker.virtual_nodes import VirtualNodes
from tests.unit.test_worker_groups import CPU, WAIT_S, NeverSums


class Worker:
    """Of one of `size` threads that meet."""

    def __init__(
        self, store: dist.Store, rank: int, size: int, model: nn.Module, find_unused_parameters: bool
    ) -> None:
        self.group = Group(store, generation=1, rank=rank, size=size, device=CPU, timeout_s=WAIT_S)
        self.steps = FastSteps(
            model,
            members=Membership(self.group, Pacer(1.0), VirtualNodes(count=size, global_batch_size=4 * size)),
            device=CPU,
            job_seed=0,
            find_unused_parameters=find_unused_parameters,
            stopwatch=Stopwatch(CPU),
        )

    def step(self) -> None:
        self.steps.run(0, [lambda: self.steps.model(torch.randn(4, 3)).sum().backward()])


@contextmanager
def met(*models: nn.Module, find_unused_parameters: bool = False) -> Iterator[list[Worker]]:
    """A worker for each model. Their groups end here, as last of all: neither gloo's own threads nor who holds Python's
    lock can end one."""
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


def assert_left_behind(waits: Worker, step: Future[None], silent: Worker) -> None:
    """In a step that waits for a peer which says nothing, and closes its connections in the end."""
    while not waits.group.leave_behind():
        assert not step.done()
        time.sleep(0.001)
    silent.group.close()
    with pytest.raises(LeftBehind):
        step.result(WAIT_S)


def test_no_step_waits_for_a_sum_in_a_group_that_was_closed() -> None:
    """Equal parts on whole cores, which torch could sum by itself."""
    with met(nn.Linear(3, 1)) as (worker,):
        worker.group.process_group = NeverSums(worker.group.close)  # type: ignore[assignment]
        worker.step()
        with pytest.raises(PeerLost):
            worker.group.check()


def test_who_waits_for_buffers_that_never_come_is_left_behind() -> None:
    with ThreadPoolExecutor(1) as thread, met(nn.BatchNorm1d(3), nn.BatchNorm1d(3)) as (silent, waits):
        step: Future[None] = thread.submit(waits.step)
        assert_left_behind(waits, step, silent)


def test_who_waits_for_buckets_that_never_come_is_left_behind() -> None:
    """The wrapper makes them anew after the first step, and takes rank 0's."""
    with ThreadPoolExecutor(2) as threads, met(nn.Linear(3, 1), nn.Linear(3, 1)) as workers:
        for step in [threads.submit(worker.step) for worker in workers]:
            step.result(WAIT_S)
        silent, waits = workers
        step = threads.submit(waits.step)
        assert_left_behind(waits, step, silent)


class NeverTellsWhatWasUsed(NeverSums):
    """Its sums of gradients are there at once."""

    def allreduce(self, tensors: list[torch.Tensor]) -> NeverSums:
        if not tensors[0].is_floating_point():
            return super().allreduce(tensors)
        at_once = NeverSums()
        at_once.sum.set_result(tensors)
        return at_once


def test_no_step_waits_for_who_used_which_parameters_in_a_group_that_was_closed() -> None:
    with met(nn.Linear(3, 1), find_unused_parameters=True) as (worker,):
        worker.group.process_group = NeverTellsWhatWasUsed(worker.group.close)  # type: ignore[assignment]
        worker.step()
        with pytest.raises(PeerLost):
            worker.group.check()


class Chooses(nn.Module):
    """Its first layer is used by rank 0 alone, and its last by nobody."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[1](x if self.rank else self.layers[0](x))


def test_all_know_which_parameters_were_used_by_somebody() -> None:
    models = [Chooses(rank) for rank in range(2)]
    with ThreadPoolExecutor(2) as threads, met(*models, find_unused_parameters=True) as workers:
        for _ in range(2):
            for step in [threads.submit(worker.step) for worker in workers]:
                step.result(WAIT_S)
        gradients = [[layer.weight.grad for layer in model.layers] for model in models]
        for first, second in zip(*(of_rank[:2] for of_rank in gradients), strict=True):
            assert torch.equal(first, second)  # type: ignore[arg-type]
        assert [of_rank[2] for of_rank in gradients] == [None, None]


def test_a_step_begins_with_the_buffers_of_rank_0() -> None:
    models = [nn.BatchNorm1d(3, momentum=0.0) for _ in range(2)]  # it learns nothing
    with ThreadPoolExecutor(2) as threads, met(*models) as workers:
        for rank, model in enumerate(models):
            torch.nn.init.constant_(model.get_buffer("running_mean"), rank + 5.0)
        for step in [threads.submit(worker.step) for worker in workers]:
            step.result(WAIT_S)
        assert [model.get_buffer("running_mean").tolist() for model in models] == [[5.0] * 3] * 2
        assert torch.equal(*(model.get_parameter("bias").grad for model in models))  # type: ignore[arg-type]
