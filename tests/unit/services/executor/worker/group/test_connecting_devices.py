"""A device that cannot connect beside a busy group connects between two steps, or is a lost peer."""

# pyright: reportPrivateImportUsage=false

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks.engine.transports import AsynchronousTransport
from elasticflow.services.executor.worker.group import groups
from elasticflow.services.executor.worker.group.gloo_transport import GlooTransport, StagedTransport
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.transport import Membership, Transfer, Transport

CPU = torch.device("cpu")
WAIT_S = 30.0


class OwnTransport(StagedTransport):
    """Its abort leaves the host's connections, as NCCL's does."""

    def abort(self) -> None: ...


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of rank 1, whose device connects only alone: beside a busy group its set-up hangs until it is given up."""
    made: list[str] = []

    def connect(_: object, member: Membership, **__: object) -> Transport:
        if member.rank == 1:
            made.append("beside" if member.timeout_s < WAIT_S else "alone")
            if len(made) < 2:
                threading.Event().wait(member.timeout_s)
                raise PeerLost("NCCL did not answer")
        return AsynchronousTransport(member)

    monkeypatch.setattr(groups, "device_transport", connect)
    monkeypatch.setattr(groups, "_BESIDE_S", 0.2)
    return made


def on_two_ranks(act: Callable[[Group], Any], **options: Any) -> list[Any]:
    store = dist.HashStore()

    def run(rank: int) -> Any:
        return act(Group(Membership(store, rank=rank, size=2, timeout_s=WAIT_S), generation=1, device=CPU, **options))

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(run, range(2)))


def test_devices_that_do_not_connect_beside_a_busy_group_connect_at_the_step_boundary(attempts: list[str]) -> None:
    def act(group: Group) -> float:
        assert attempts == ["beside"]
        group.barrier()
        group.connect_device()
        summed = torch.ones(1)
        group.all_reduce(summed).wait()
        group.check_received()
        return summed.item()

    assert on_two_ranks(act, may_connect_later=True) == [2.0, 2.0]
    assert attempts == ["beside", "alone"]


def test_devices_that_do_not_connect_alone_are_a_lost_peer(
    attempts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Transport:
        raise PeerLost("NCCL did not answer")

    monkeypatch.setattr(groups, "device_transport", fail)
    with pytest.raises(PeerLost, match="the devices of generation 1 did not connect: NCCL did not answer"):
        on_two_ranks(lambda _: None)
    assert not attempts


def test_all_workers_know_the_rank_whose_device_did_not_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Barrier(2)

    def connect(gloo: GlooTransport, member: Membership, **_: object) -> Transport:
        if member.rank == 1:
            raise PeerLost("ncclUnhandledCudaError: out of memory")
        return OwnTransport(gloo, CPU)

    def fail(rank: int, store: dist.Store) -> str:
        with pytest.raises(PeerLost) as lost:
            Group(Membership(store, rank=rank, size=2, timeout_s=WAIT_S), generation=1, device=CPU)
        ended.wait(WAIT_S)
        return str(lost.value)

    monkeypatch.setattr(groups, "device_transport", connect)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(fail, range(2), [dist.HashStore()] * 2)
    assert first.endswith("did not connect: the log of rank 1 has the reason")
    assert second.endswith("did not connect: ncclUnhandledCudaError: out of memory")


def test_a_connected_device_is_released_if_a_peer_is_lost_before_all_know_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise its threads and connections stay for as long as the worker lives."""
    ended: list[str] = []

    class Recorded(OwnTransport):
        def abort(self) -> None:
            ended.append("aborted")

        def release(self) -> None:
            ended.append("released")

    def connect(gloo: GlooTransport, *_: object, **__: object) -> Transport:
        gloo.abort()  # the peer dies
        return Recorded(gloo, CPU)

    def fail(rank: int, store: dist.Store) -> None:
        with pytest.raises(PeerLost):
            Group(Membership(store, rank=rank, size=2, timeout_s=WAIT_S), generation=1, device=CPU)

    monkeypatch.setattr(groups, "device_transport", connect)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(fail, range(2), [dist.HashStore()] * 2))
    assert sorted(ended) == ["aborted", "aborted", "released", "released"]


def tensors_of_all_types(rank: int) -> list[torch.Tensor]:
    """Some of them are no multiple of four bytes, have no dimension, or do not lie in order."""
    numbers = torch.arange(6).reshape(2, 3) + rank
    types = [torch.float32, torch.bfloat16, torch.bool, torch.int16, torch.uint16, torch.complex64, torch.float8_e5m2]
    in_order = [numbers.to(dtype) for dtype in types] + [torch.tensor(2j * rank), torch.empty(0, dtype=torch.int16)]
    sliced = (numbers * 2).to(torch.complex64)[:, :2]
    return [*in_order, numbers.to(torch.int16).t(), sliced, torch.nn.Parameter(numbers.to(torch.complex64))]


def test_tensors_of_all_types_are_broadcast() -> None:
    def act(group: Group) -> list[torch.Tensor]:
        group.broadcast_all(tensors := tensors_of_all_types(group.rank), source=1)
        return tensors

    for received in on_two_ranks(act):
        torch.testing.assert_close(received, tensors_of_all_types(1), rtol=0, atol=0)


def test_tensors_of_all_types_are_exchanged() -> None:
    def act(group: Group) -> list[torch.Tensor]:
        sent = [tensor.detach().contiguous() for tensor in tensors_of_all_types(group.rank)]
        received, peer = [torch.empty_like(tensor) for tensor in sent], 1 - group.rank
        group.exchange([Transfer(each, peer) for each in sent], [Transfer(each, peer) for each in received])
        return received

    for rank, received in enumerate(on_two_ranks(act)):
        expected = [tensor.detach() for tensor in tensors_of_all_types(1 - rank)]
        torch.testing.assert_close(received, expected, rtol=0, atol=0)
