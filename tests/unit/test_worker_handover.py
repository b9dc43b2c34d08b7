"""State from those who have it to those who come, between threads that stand for workers."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch import nn

from services.executor.worker.connections import connections
from services.executor.worker.groups import Group, PeerLost, Transfer
from services.executor.worker.handover import NOTHING_YET, hand_over

CPU = torch.device("cpu")


def together(size, act):
    """act(group), for each of so many members at once; what they return, by rank."""
    store = dist.HashStore()
    with ThreadPoolExecutor(size) as pool:

        def member(rank):
            return act(Group(store, generation=1, rank=rank, size=size, device=CPU, timeout_s=30))

        return list(pool.map(member, range(size)))


def state(filled_with: float):
    return {
        "model": {"large": torch.full((300, 300), filled_with), "small": torch.full((3,), filled_with)},
        "optimizer": {"steps": [torch.tensor(7), torch.tensor([True, False])], "nothing": torch.empty(0)},
        "iteration": 12,
        "names": ("loss", "norm"),
        "strided": torch.arange(12.0).reshape(3, 4).t(),
    }


def assert_same(found, expected):
    assert (found["iteration"], found["names"]) == (12, ("loss", "norm"))
    for part in ("model", "optimizer"):
        torch.testing.assert_close(found[part], expected[part], rtol=0.0, atol=0.0)
    assert torch.equal(found["strided"], expected["strided"])


@pytest.mark.parametrize("sources", [{0}, {1}, {0, 2}, {2, 3}])
def test_whoever_has_done_the_most_steps_gives_it_to_all_that_stay(sources):
    def act(everyone):
        has_it = everyone.rank in sources
        steps = 12 if has_it else (3 if everyone.rank == 0 else NOTHING_YET)
        return hand_over(everyone, iteration=steps, num_staying=3, state=state(0.5) if has_it else None)

    handed = together(4, act)
    for place, each in enumerate(handed):
        if place in sources or place >= 3:
            assert each.state is None
        else:
            assert_same(each.state, state(0.5))
            assert each.num_bytes == handed[0].num_bytes > 300 * 300 * 4


def test_a_newcomers_own_tensors_are_written_where_they_fit():
    own = [torch.zeros(300, 300), torch.zeros(2), torch.zeros((), dtype=torch.int32)]

    def act(everyone):
        if everyone.rank == 0:
            return hand_over(everyone, iteration=12, num_staying=2, state=state(0.5))
        return hand_over(everyone, iteration=NOTHING_YET, num_staying=2, own=own)

    _, handed = together(2, act)
    assert_same(handed.state, state(0.5))
    assert handed.state["model"]["large"] is own[0]
    assert own[1].tolist() == [0.0, 0.0]


def test_where_nobody_needs_it_nothing_moves():
    handed = together(3, lambda everyone: hand_over(everyone, iteration=5, num_staying=2, state=state(1.0)))
    assert [(each.state, each.num_bytes) for each in handed] == [(None, 0)] * 3


def test_a_state_that_is_handed_over_trains_on_to_the_bit():
    def trained(steps):
        model = nn.Linear(4, 2)
        nn.init.constant_(model.weight, 0.3)
        nn.init.constant_(model.bias, -0.1)
        optimizer = torch.optim.Adam(model.parameters())
        step(model, optimizer, steps)
        return model, optimizer

    def step(model, optimizer, times):
        for _ in range(times):
            optimizer.zero_grad()
            model(torch.ones(3, 4)).square().sum().backward()
            optimizer.step()

    def act(everyone):
        if everyone.rank == 0:
            model, optimizer = trained(3)
            whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            hand_over(everyone, iteration=3, num_staying=2, state=whole)
        else:
            model = nn.Linear(4, 2)
            optimizer = torch.optim.Adam(model.parameters())
            own = list(model.state_dict().values())
            handed = hand_over(everyone, iteration=NOTHING_YET, num_staying=2, own=own)
            model.load_state_dict(handed.state["model"])
            optimizer.load_state_dict(handed.state["optimizer"])
        step(model, optimizer, 2)
        return model.state_dict()

    given, taken = together(2, act)
    expected, _ = trained(5)
    for found in (given, taken):
        torch.testing.assert_close(found, expected.state_dict(), rtol=0.0, atol=0.0)


def test_a_peer_that_is_gone_is_noticed():
    def act(group):
        if group.rank == 1:
            return
        group.exchange([], [Transfer(torch.zeros(3), 1)])
        return

    with pytest.raises(PeerLost):
        together(2, act)


def test_a_third_worker_learns_of_a_loss_from_the_one_who_noticed():
    """Whoever has inherited the connections, e.g. to load data, keeps them open."""
    copies = []

    def act(group):
        group.part()  # both are there
        if group.rank == 0:
            # Not what the other thread had copied while it looked.
            still_open = group._connections & connections()
            copies.extend(os.dup(descriptor) for descriptor, _ in still_open)
            group.close()
            return
        if group.rank == 1:
            group.exchange([], [Transfer(torch.zeros(3), 0)])
        return

    with pytest.raises(PeerLost):
        together(2, act)
    for copy in copies:
        os.close(copy)
