"""State transfers between threads that stand for workers."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch import nn

from elasticflow.services.executor.worker.group import groups
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.state_transfer import NO_STATE, transfer_state
from elasticflow.services.executor.worker.group.tcp_connections import connections
from elasticflow.services.executor.worker.group.transport import Membership, Transfer
from elasticflow.services.executor.worker.interface import TrainingFailed

CPU = torch.device("cpu")


def together(size, act):
    """Results of act(group), run by that many members concurrently, by rank."""
    store = dist.HashStore()
    with ThreadPoolExecutor(size) as pool:

        def member(rank):
            return act(Group(Membership(store, rank=rank, size=size, timeout_s=30), generation=1, device=CPU))

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
def test_workers_with_the_most_steps_are_the_sources_for_all_staying_ranks(sources):
    def act(group):
        has_it = group.rank in sources
        steps = 12 if has_it else (3 if group.rank == 0 else NO_STATE)
        return transfer_state(group, iteration=steps, num_staying=3, state=state(0.5) if has_it else None)

    transfer = together(4, act)
    for place, each in enumerate(transfer):
        if place in sources or place >= 3:
            assert each.state is None
        else:
            assert_same(each.state, state(0.5))
            assert each.num_bytes == transfer[0].num_bytes > 300 * 300 * 4


def test_sources_with_different_tensors_are_refused_before_anything_is_sent():
    def act(group):
        own = (state(0.5), state(0.5) | {"more": torch.ones(3)}, None)[group.rank]
        steps = NO_STATE if own is None else 12
        with pytest.raises(TrainingFailed if group.rank == 1 else (PeerLost, RuntimeError)):
            transfer_state(group, iteration=steps, num_staying=3, state=own)
        group.close()

    together(3, act)


def test_a_joining_worker_receives_into_its_own_tensors_if_they_fit():
    destinations = [torch.zeros(300, 300), torch.zeros(2), torch.zeros((), dtype=torch.int32)]

    def act(group):
        if group.rank == 0:
            return transfer_state(group, iteration=12, num_staying=2, state=state(0.5))
        return transfer_state(group, iteration=NO_STATE, num_staying=2, destinations=destinations)

    _, transfer = together(2, act)
    assert_same(transfer.state, state(0.5))
    assert transfer.state["model"]["large"] is destinations[0]
    assert destinations[1].tolist() == [0.0, 0.0]


def test_nothing_moves_if_no_worker_needs_the_state():
    transfer = together(3, lambda group: transfer_state(group, iteration=5, num_staying=2, state=state(1.0)))
    assert [(each.state, each.num_bytes) for each in transfer] == [(None, 0)] * 3


def test_training_continues_bitwise_after_a_state_transfer():
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

    def act(group):
        if group.rank == 0:
            model, optimizer = trained(3)
            whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            transfer_state(group, iteration=3, num_staying=2, state=whole)
        else:
            model = nn.Linear(4, 2)
            optimizer = torch.optim.Adam(model.parameters())
            destinations = list(model.state_dict().values())
            transfer = transfer_state(group, iteration=NO_STATE, num_staying=2, destinations=destinations)
            model.load_state_dict(transfer.state["model"])
            optimizer.load_state_dict(transfer.state["optimizer"])
        step(model, optimizer, 2)
        return model.state_dict()

    given, taken = together(2, act)
    expected, _ = trained(5)
    for found in (given, taken):
        torch.testing.assert_close(found, expected.state_dict(), rtol=0.0, atol=0.0)


class CountingTransport:
    """Stands for what moves tensors between GPUs; the tensors here lie on the host."""

    error = ""

    def __init__(self, gloo):
        self._gloo, self.num_bytes = gloo, 0

    def begin_exchange(self, sends, receives):
        self.num_bytes += sum(transfer.tensor.numel() for transfer in sends)
        return self._gloo.begin_exchange(sends, receives)

    def wait(self):
        pass

    def release(self):
        pass


@pytest.mark.parametrize(("size", "num_staying", "sources"), [(3, 3, {0}), (3, 2, {0, 2}), (3, 2, {2})])
def test_tensors_on_the_device_do_not_pass_the_host(monkeypatch, size, num_staying, sources):
    """Unless all workers that have the state leave: they have no group on the device with those that stay."""
    monkeypatch.setattr(groups, "device_transport", lambda gloo, *_, **__: CountingTransport(gloo))
    store, device = dist.HashStore(), torch.device("cpu", 0)
    is_direct = any(rank < num_staying for rank in sources)
    host_bytes = [0] * size

    def act(transfer_group):
        rank, training_group = transfer_group.rank, None
        if rank < num_staying:
            training_group = Group(
                Membership(dist.PrefixStore("training", store), rank=rank, size=num_staying, timeout_s=30),
                generation=1,
                device=device,
            )
        exchange_on_host = transfer_group.exchange

        def exchange(sends, receives):
            host_bytes[rank] += sum(transfer.tensor.numel() for transfer in sends)
            exchange_on_host(sends, receives)

        transfer_group.exchange = exchange
        has_it = rank in sources
        transfer = transfer_state(
            transfer_group,
            iteration=12 if has_it else NO_STATE,
            num_staying=num_staying,
            state=state(0.5) if has_it else None,
            device=device,
            training_group=training_group,
        )
        if rank < num_staying and not has_it:
            assert_same(transfer.state, state(0.5))
        return transfer.num_bytes, 0 if training_group is None else training_group._on_device.num_bytes

    with ThreadPoolExecutor(size) as pool:

        def member(rank):
            group = Group(
                Membership(dist.PrefixStore("transfer", store), rank=rank, size=size, timeout_s=30),
                generation=1,
                device=None,
            )
            return act(group)

        results = list(pool.map(member, range(size)))
    num_bytes = results[0][0] * sum(rank not in sources for rank in range(num_staying))
    assert sum(on_device for _, on_device in results) == (num_bytes if is_direct else 0)
    assert sum(host_bytes) == (0 if is_direct else num_bytes)


@pytest.mark.parametrize("source", [0, 1])
def test_workers_with_other_kinds_of_device_receive_the_state_by_way_of_the_host(monkeypatch, source):
    """Rank 0 has its tensors on a device, rank 1 on the host."""
    monkeypatch.setattr(groups, "device_transport", lambda gloo, *_, **__: CountingTransport(gloo))
    store = dist.HashStore()

    def member(rank):
        device = torch.device("cpu", 0) if rank == 0 else CPU
        transfer, training = (
            Membership(dist.PrefixStore(name, store), rank=rank, size=2, timeout_s=30)
            for name in ("transfer", "training")
        )
        transfer_group = Group(transfer, generation=1, device=None)
        training_group = Group(training, generation=1, device=device)
        own = {"iteration": 12, "state": state(0.5)} if rank == source else {"iteration": NO_STATE}
        transfer = transfer_state(transfer_group, num_staying=2, device=device, training_group=training_group, **own)
        assert training_group._on_device.num_bytes == 0
        return transfer.state

    with ThreadPoolExecutor(2) as pool:
        states = list(pool.map(member, range(2)))
    assert states.pop(source) is None
    assert_same(states[0], state(0.5))


@pytest.mark.parametrize("some_joins", [True, False])
def test_of_states_that_differ_by_rounding_all_take_the_first_if_some_worker_needs_one(some_joins):
    """Else joining workers would get a part of each. Rank 2 leaves."""

    def act(group):
        joins = some_joins and group.rank == 0
        own = (
            {"iteration": NO_STATE}
            if joins
            else {"iteration": 12, "state": state(float(group.rank)), "may_differ": True}
        )
        return transfer_state(group, num_staying=2, **own).state

    first, second, third = together(3, act)
    assert third is None
    if some_joins:
        assert_same(first, state(1.0))
        assert second is None
    else:
        assert first is second is None


def test_workers_with_a_state_take_that_of_the_first_source_if_theirs_may_differ():
    def act(group):
        own = {"iteration": 12, "state": state(float(group.rank)), "may_differ": group.rank == 1}
        return transfer_state(group, num_staying=3, **own if group.rank < 2 else {"iteration": NO_STATE}).state

    first, *others = together(3, act)
    assert first is None
    for each in others:
        assert_same(each, state(0.0))


def test_the_end_of_a_peer_is_noticed():
    def act(group):
        if group.rank == 1:
            return
        group.exchange([], [Transfer(torch.zeros(3), 1)])
        return

    with pytest.raises(PeerLost):
        together(2, act)


def test_a_third_worker_learns_of_a_loss_from_the_one_that_noticed_it():
    """A process that has inherited the connections, e.g. a reader process, keeps them open."""
    copies = []

    def act(group):
        group.barrier()  # both have arrived
        if group.rank == 0:
            # without the copies that the other thread made meanwhile
            still_open = group._host._sums._connections & connections()
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
