"""A sharded optimizer's steps have the bits of the whole one's, at any number of workers, which may change."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch import nn

from elasticflow.services.executor.worker.checkpoint.files import whole_state
from elasticflow.services.executor.worker.engine.sharded_optimizer import (
    PartLost,
    ShardedOptimizer,
    moves,
    redistribute,
)
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.transport import Membership
from elasticflow.services.executor.worker.interface import TrainingFailed

CPU = torch.device("cpu")
NUM_STEPS = 3  # between two changes of the workers

MAKE = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01, amsgrad=True),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01),
    "adamw, tensors at once": lambda groups: torch.optim.AdamW(groups, lr=0.01, foreach=True),
    "adamw, fused": lambda groups: torch.optim.AdamW(groups, lr=0.01, fused=True),
    "nadam": lambda groups: torch.optim.NAdam(groups, lr=0.01),
    "radam": lambda groups: torch.optim.RAdam(groups, lr=0.01),
    "adamax": lambda groups: torch.optim.Adamax(groups, lr=0.01),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.5, centered=True),
    "adadelta": lambda groups: torch.optim.Adadelta(groups),
}


class Model(nn.Module):
    """Sizes that no block fits, a layout of its own, a scalar, and a parameter that gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.large = nn.Parameter(torch.randn(37, 53, generator=generator))
        self.images = nn.Parameter(
            torch.randn(5, 3, 4, 7, generator=generator).contiguous(memory_format=torch.channels_last)
        )
        self.scalar = nn.Parameter(torch.tensor(0.7))
        self.unused = nn.Parameter(torch.ones(300))
        self.short = nn.Parameter(torch.randn(131, generator=generator).to(torch.bfloat16))

    def groups(self):
        return [
            {"params": [self.large, self.scalar]},
            {"params": [self.images, self.unused, self.short], "weight_decay": 0.01},
        ]


def step(model, optimizer, iteration):
    """As after the sum of the gradients: the same on all workers."""
    generator = torch.Generator().manual_seed(iteration)
    for parameter in model.parameters():
        if parameter is not model.unused:
            parameter.grad = torch.empty_like(parameter).copy_(torch.randn(parameter.shape, generator=generator))
    for group in optimizer.param_groups:
        group["lr"] *= 0.9
    optimizer.step()


def whole(make, num_steps):
    """Weights and state of the whole optimizer."""
    model = Model()
    optimizer = make(model.groups())
    for iteration in range(num_steps):
        step(model, optimizer, iteration)
    return model.state_dict(), optimizer.state_dict()


def together(size, act):
    store = dist.HashStore()
    with ThreadPoolExecutor(size) as pool:

        def member(rank):
            return act(Group(Membership(store, rank=rank, size=size, timeout_s=30), generation=1, device=CPU))

        return list(pool.map(member, range(size)))


class Worker:
    def __init__(self, make) -> None:
        self.model = Model()
        self.optimizer = make(self.model.groups())
        self.sharded = ShardedOptimizer(self.optimizer)

    def train(self, group, first, num_steps=NUM_STEPS):
        self.sharded.join(group)
        for iteration in range(first, first + num_steps):
            step(self.model, self.optimizer, iteration)


def assert_same(found, expected):
    assert found["param_groups"] == expected["param_groups"]
    assert found["state"].keys() == expected["state"].keys()
    for number, values in expected["state"].items():
        assert found["state"][number].keys() == values.keys()
        for name, value in values.items():
            assert torch.equal(found["state"][number][name].reshape(value.shape), value), (number, name)


@pytest.mark.parametrize("name", MAKE)
def test_any_number_of_workers_has_the_bits_of_the_whole_step(name):
    weights, state = whole(MAKE[name], NUM_STEPS)
    for size in (2, 3, 5):
        workers = [Worker(MAKE[name]) for _ in range(size)]

        def act(group, workers=workers):
            workers[group.rank].sharded.own(group)
            workers[group.rank].train(group, 0)

        together(size, act)
        for worker in workers:
            torch.testing.assert_close(worker.model.state_dict(), weights, rtol=0.0, atol=0.0)
        assert_same(whole_state([worker.sharded.state_dict() for worker in workers]), state)


def test_workers_share_the_memory_of_the_state():
    model = nn.Linear(300, 300)
    num_bytes = [0] * 4

    def act(group):
        optimizer = torch.optim.Adam([parameter.detach().clone().requires_grad_() for parameter in model.parameters()])
        ShardedOptimizer(optimizer).own(group)
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        values = [value for each in optimizer.state.values() for value in each.values()]
        num_bytes[group.rank] = sum(value.nbytes for value in values if value.dim())

    together(4, act)
    whole_bytes = 2 * sum(parameter.nbytes for parameter in model.parameters())
    assert max(num_bytes) - min(num_bytes) <= 2 * 2 * 128 * 4, "a block of each parameter, in two moments"
    assert sum(num_bytes) == whole_bytes


@pytest.mark.parametrize("name", ["momentum", "adam", "adamw"])
def test_state_moves_to_its_owners_when_workers_join_and_leave(name):
    """2, then 5, 3 with other ranks, and 1 worker; all but those that are kept are new."""
    workers = [Worker(MAKE[name]) for _ in range(2)]

    def begin(group):
        workers[group.rank].sharded.own(group)
        workers[group.rank].train(group, 0)

    together(2, begin)
    done = NUM_STEPS
    for kept, size in (((1, None, 0, None, None), 5), ((4, 0, None), 3), ((2,), 1)):
        before = workers
        there = [Worker(MAKE[name]) if old is None else before[old] for old in kept]
        for new, old in zip(there, kept, strict=True):
            if old is None:
                new.model.load_state_dict(before[0].model.state_dict())
                new.sharded.drop()
        leaving = [worker for worker in before if worker not in there]

        def change(group, there=there, leaving=leaving, size=size):
            redistribute([*there, *leaving][group.rank].sharded, group, size)

        together(len(there) + len(leaving), change)
        workers = there

        def train(group, workers=workers, first=done):
            workers[group.rank].train(group, first)

        together(size, train)
        done += NUM_STEPS
    weights, state = whole(MAKE[name], done)
    torch.testing.assert_close(workers[0].model.state_dict(), weights, rtol=0.0, atol=0.0)
    assert_same(whole_state([workers[0].sharded.state_dict()]), state)


def test_a_whole_state_is_divided_when_it_is_loaded_and_a_part_comes_back():
    _, state = whole(MAKE["adam"], NUM_STEPS)
    parts = []

    def act(group):
        worker = Worker(MAKE["adam"])
        worker.sharded.own(group)
        worker.sharded.load_state_dict(state)
        again = worker.sharded.state_dict()
        worker.sharded.load_state_dict(again)
        parts.append((group.rank, worker.sharded.state_dict()))

    together(3, act)
    assert_same(whole_state([part for _, part in sorted(parts, key=lambda each: each[0])]), state)


def test_each_part_comes_from_a_worker_that_holds_it():
    held = [range(4), range(4, 10), range(0)]
    assert moves(range(3), held, 2) == [(0, range(3))]
    assert moves(range(3, 7), held, 1) == [(0, range(3, 4)), (1, range(4, 7))]
    assert moves(range(2, 6), [range(2, 6), range(10)], 1) == [(1, range(2, 6))]
    with pytest.raises(PartLost, match="newest checkpoint"):
        moves(range(8, 12), held, 0)


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.Adafactor])
def test_an_optimizer_that_is_not_element_wise_is_refused(kind):
    with pytest.raises(TrainingFailed, match=f"{kind.__name__} is not known to treat each element"):
        ShardedOptimizer(kind([nn.Parameter(torch.ones(2, 2))]))


def test_a_parameter_with_holes_is_refused():
    with pytest.raises(TrainingFailed, match="holes"):
        ShardedOptimizer(torch.optim.SGD([nn.Parameter(torch.ones(4, 4)[:, ::2])]))


def test_only_the_engine_reads_the_state():
    worker = Worker(MAKE["adam"])
    with pytest.raises(TrainingFailed, match="only this worker's part"):
        worker.optimizer.state_dict()
