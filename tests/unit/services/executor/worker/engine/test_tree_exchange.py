"""Sums between workers: the same bits in one stage and in two, and whatever travels before a pass has ended."""

# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.engine.transports import connecting
from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine import tree_reduce
from elasticflow.services.executor.worker.engine.bitwise_steps import each_written_to
from elasticflow.services.executor.worker.engine.tree_reduce import TensorSum, stage_peers
from elasticflow.services.executor.worker.group import groups
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.transport import Membership, Transfer

CPU = torch.device("cpu")
WAIT_S = 60.0
SHAPES = [(300,), (7, 50), (), (1000,)]
TWO_OF_FOUR = ["one"] * 4 + ["other"] * 4  # hosts


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_reduce, "_SEGMENT_BYTES", 2_000)


def together(size: int, act: Callable[[Group], object], transport: str = "gloo") -> list:
    """What each rank's act returns."""
    store = dist.HashStore()
    with ExitStack() as stack, ThreadPoolExecutor(size) as threads:
        stack.enter_context(patch.object(groups, "device_transport", connecting(transport)))

        def run(rank: int) -> object:
            group = Group(Membership(store, rank=rank, size=size, timeout_s=WAIT_S), generation=1, device=CPU)
            try:
                return act(group)
            finally:
                group.barrier()
                group.release()

        return list(threads.map(run, range(size)))


def tensors_of(virtual_node: int, index: int) -> list[torch.Tensor | None]:
    """One pass's; every third has no second one, and none has a fifth."""
    chance = torch.Generator().manual_seed(100 * virtual_node + index)
    made: list[torch.Tensor | None] = [torch.randn(shape, generator=chance) for shape in SHAPES]
    if virtual_node % 3 == 1:
        made[1] = None
    return [*made, None]


def summed_by(group: Group | None, virtual_nodes: VirtualNodes) -> list[torch.Tensor | None]:
    rank, size = (group.rank, group.size) if group else (0, 1)
    like = [torch.empty(shape) for shape in [*SHAPES, (3,)]]
    summed = TensorSum(virtual_nodes, group)
    for _ in range(2):  # the second sum reuses the buffers
        for micro_batch in virtual_nodes.computed_by(rank, size):
            tensors = tensors_of(micro_batch.virtual_node, micro_batch.index)
            shared = summed.begin_last(micro_batch, like)
            if shared is not None:
                shared.write(3, tensors[3])
                shared.send_written()
            summed.push(micro_batch, tensors)
        total = summed.finish(like)
        summed.check_received()
    return [None if each is None else each.clone() for each in total]


def same(one: list[torch.Tensor | None], other: list[torch.Tensor | None]) -> bool:
    return all(
        (a is None and b is None) or (a is not None and b is not None and a.equal(b))
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("transport", ["gloo", "staged", "asynchronous"])
@pytest.mark.parametrize(("count", "size", "micro_batch_size"), [(8, 2, 0), (8, 3, 1), (6, 4, 2), (2, 3, 0)])
def test_any_number_of_workers_gives_the_bits_of_one(
    count: int, size: int, micro_batch_size: int, transport: str
) -> None:
    virtual_nodes = VirtualNodes(count=count, global_batch_size=24, micro_batch_size=micro_batch_size)
    alone = summed_by(None, virtual_nodes)
    assert alone[-1] is None
    for total in together(size, lambda group: summed_by(group, virtual_nodes), transport):
        assert same(total, alone)


@pytest.fixture
def bytes_between(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], int]:
    """Counts the bytes that leave rank 0's host, and lets groups see these hosts."""
    sent: list[tuple[int, int, int]] = []
    begin = Group.begin_exchange

    def counting(self: Group, sends: list[Transfer], receives: list[Transfer]) -> Callable[[], None]:
        sent.extend((self.rank, transfer.peer, transfer.tensor.nbytes) for transfer in sends)
        return begin(self, sends, receives)

    monkeypatch.setattr(Group, "begin_exchange", counting)
    return lambda hosts: sum(size for rank, peer, size in sent if hosts[rank] == hosts[0] and hosts[peer] != hosts[0])


@pytest.mark.parametrize("count", [8, 16, 6])
def test_two_hosts_exchange_a_quarter_with_the_same_bits(count: int, bytes_between: Callable[[list[str]], int]) -> None:
    virtual_nodes = VirtualNodes(count=count, global_batch_size=24)

    def sum_on(hosts: list[str]) -> Callable[[Group], object]:
        def act(group: Group) -> object:
            group.hosts = tuple(hosts)  # type: ignore[assignment]
            return summed_by(group, virtual_nodes)

        return act

    alone = summed_by(None, virtual_nodes)
    assert all(same(total, alone) for total in together(8, sum_on(["same"] * 8)))
    direct = bytes_between(TWO_OF_FOUR)
    assert all(same(total, alone) for total in together(8, sum_on(TWO_OF_FOUR)))
    in_stages = bytes_between(TWO_OF_FOUR) - direct
    if count % 8 == 0:  # each host's virtual nodes are one subtree
        assert in_stages * 4 == direct
    else:
        assert in_stages < direct


@pytest.mark.parametrize(
    ("hosts", "peers"),
    [
        ("aabb", [[2, 3], [1, 3]]),
        ("abab", [[1, 3], [2, 3]]),
        ("aaab", [[0, 1, 2, 3]]),
        ("abcd", [[0, 1, 2, 3]]),
        ("aaaa", [[0, 1, 2, 3]]),
    ],
)
def test_stages_need_equally_many_workers_on_several_hosts(hosts: str, peers: list[list[int]]) -> None:
    assert stage_peers(3, hosts) == peers


def test_a_gradient_that_changes_after_it_was_sent_is_sent_again() -> None:
    two = VirtualNodes(count=2, global_batch_size=2)

    def act(group: Group) -> torch.Tensor | None:
        summed = TensorSum(two, group)
        (micro_batch,) = two.micro_batches(group.rank)
        like = [torch.empty(4), torch.empty(1000)]
        shared = summed.begin_last(micro_batch, like)
        assert shared is not None
        tensors: list[torch.Tensor | None] = [torch.ones(4), torch.ones(1000)]
        for value in (1.0, 5.0) if group.rank == 1 else (1.0,):
            changed = tensors[1]
            assert changed is not None
            shared.write(1, changed.fill_(value))
            shared.send_written()
        summed.push(micro_batch, tensors)
        return summed.finish(like)[1]

    for total in together(2, act):
        assert total is not None
        assert total.eq(6.0).all()


def test_gradients_travel_during_the_backward_pass() -> None:
    """The last layer's are under way before the first layer's are there."""
    two = VirtualNodes(count=2, global_batch_size=2)

    def act(group: Group) -> list[bool]:
        model = nn.Sequential(*[nn.Linear(40, 40, bias=False) for _ in range(3)])
        parameters = list(model.parameters())
        begun: list[bool] = []
        summed = TensorSum(two, group)
        (micro_batch,) = two.micro_batches(group.rank)
        shared = summed.begin_last(micro_batch, parameters)
        assert shared is not None
        exchange = shared._exchanges[0]
        parameters[0].register_hook(lambda _: begun.append(exchange.has_sent_from(2)))
        with each_written_to(shared, parameters):
            model(torch.ones(1, 40)).sum().backward()
        summed.push(micro_batch, [parameter.grad for parameter in parameters])
        summed.finish(parameters)
        return begun

    assert together(2, act) == [[True], [True]]
