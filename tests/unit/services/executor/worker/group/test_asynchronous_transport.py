"""The transport like NCCL's, by which the engine is tried without a GPU: what it does late, and what it does wrong."""

# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks.engine.simulated_stream import SimulatedStream, follow_in_this_thread
from benchmarks.engine.transports import Faults, connecting
from elasticflow.services.executor.worker.group import groups, nccl_transport
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.transport import Membership, Transfer

CPU = torch.device("cpu")
WAIT_S = 30.0


def on_two_ranks(act: Callable[[Group], Any], *, faults: Faults | None = None, **options: Any) -> list[Any]:
    """faults: of rank 1's."""
    store = dist.HashStore()

    def connect(*place: Any, **settings: Any) -> Any:
        _, member = place
        return connecting("asynchronous", faults if member.rank == 1 else None)(*place, **settings)

    def run(rank: int) -> Any:
        group = Group(Membership(store, rank=rank, size=2, timeout_s=WAIT_S), generation=1, device=CPU, **options)
        try:
            return act(group)
        finally:
            with suppress(PeerLost):
                group.barrier()
            group.release()

    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(2) as threads:
        patched.setattr(groups, "device_transport", connect)
        return list(threads.map(run, range(2)))


def test_a_wait_returns_before_the_data_are_there() -> None:
    may_send = threading.Event()

    def act(group: Group) -> list[float]:
        if group.rank == 1:
            may_send.wait(WAIT_S)
            group.exchange([Transfer(torch.ones(1), 0)], [])
            group.check_received()
            return []
        received, added = torch.zeros(1), torch.zeros(1)
        group.exchange([], [Transfer(received, 1)])
        added.add_(received)
        read = [received.numpy()[0], added.numpy()[0]]
        may_send.set()
        group.check_received()
        return [*read, received.numpy()[0], added.numpy()[0]]

    assert on_two_ranks(act)[0] == [0.0, 0.0, 1.0, 1.0]


def test_the_thread_that_waits_follows_though_another_has_begun() -> None:
    def act(group: Group) -> float:
        received = torch.zeros(1)
        with ThreadPoolExecutor(1) as other:
            sends, receives = [Transfer(torch.ones(1), 1 - group.rank)], [Transfer(received, 1 - group.rank)]
            wait = other.submit(group.begin_exchange, sends, receives).result()
        wait()
        return received.sum().item()

    assert on_two_ranks(act) == [1.0, 1.0]


def test_operations_follow_in_their_order_in_any_thread() -> None:
    stream, gate = SimulatedStream(), threading.Event()
    follow_in_this_thread()
    tensor, total = torch.ones(2), torch.empty(2)
    stream.push(lambda: (gate.wait(), tensor.fill_(5.0)), [tensor])
    before = tensor._version
    torch.add(tensor, tensor, out=total)
    torch._foreach_add_([tensor], [total])
    assert tensor.numpy().tolist() == [1.0, 1.0]
    assert tensor._version == before + 1
    seen: list[float] = []
    reader = threading.Thread(target=lambda: seen.append(tensor.sum().item()))
    reader.start()
    gate.set()
    reader.join(WAIT_S)
    assert (seen, total.tolist()) == ([30.0], [10.0, 10.0])
    stream.close()


def test_a_sum_begins_with_what_the_stream_has_yet_to_write() -> None:
    def act(group: Group) -> float:
        received, summed = torch.zeros(1), torch.zeros(1)
        group.exchange([Transfer(torch.ones(1), 1 - group.rank)], [Transfer(received, 1 - group.rank)])
        summed.add_(received)
        group.all_reduce(summed).wait()
        group.check_received()
        return summed.item()

    assert on_two_ranks(act) == [2.0, 2.0]


def summing(group: Group) -> float:
    summed = torch.ones(1)
    group.all_reduce(summed).wait()
    group.check_received()
    return summed.item()


def test_an_error_of_the_library_is_found_at_the_check_and_closes_the_group() -> None:
    def act(group: Group) -> str:
        with pytest.raises(PeerLost) as lost:
            summing(group)
        return str(lost.value)

    other, failed = on_two_ranks(act, faults=Faults(error=1.0))
    assert failed == "NCCL reported REMOTE_ERROR"
    assert "the library reported" in other or "closed" in other


def test_an_error_comes_at_the_call_that_the_seed_names() -> None:
    def act(group: Group) -> int:
        for number in range(100):
            try:
                summing(group)
            except PeerLost:
                return number
        return -1

    first = on_two_ranks(act, faults=Faults(seed=3, error=0.1))
    assert first == on_two_ranks(act, faults=Faults(seed=3, error=0.1))
    assert first[0] == first[1] > 0


def close(group: Group) -> bool:
    """While a sum waits for the peer, which begins none."""
    if group.rank == 0:
        group.barrier()
        return True
    summed = torch.ones(1)
    group.all_reduce(summed)
    group.barrier()
    group.close()
    group._on_device.wait()
    return bool(summed.isnan())


def test_an_abort_that_raises_has_ended_all_calls() -> None:
    assert on_two_ranks(close, faults=Faults(abort_raises=1.0)) == [True, True]


def test_a_worker_whose_abort_hangs_ends_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(Exception):
        pass

    def end(_: str) -> None:
        raise Ended

    monkeypatch.setattr(nccl_transport, "end_as_lost_peer", end)
    monkeypatch.setattr(nccl_transport, "_ABORT_S", 0.1)
    with pytest.raises(Ended):
        on_two_ranks(close, faults=Faults(abort_hangs=1.0))


def test_a_set_up_that_hangs_is_a_lost_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_BESIDE_S", 0.2)

    def act(group: Group) -> None:
        group._timeout_s = 0.2  # of the attempt alone
        with pytest.raises(PeerLost, match="did not connect:"):
            group.connect_device()

    on_two_ranks(act, faults=Faults(init_hangs=1.0), may_connect_later=True)
