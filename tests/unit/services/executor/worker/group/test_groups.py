"""A wait for lost peers fails, or its thread is abandoned and never interferes with its replacement."""

# pyright: reportPrivateImportUsage=false

import gc
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue

import pytest
import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.bitwise_steps import BitwiseSteps
from elasticflow.services.executor.worker.engine.gradients_and_buffers import CarriedGradients
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.virtual_node_scheduler import LockstepScheduler
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.peer_loss import PeerLost, ThreadAbandoned
from elasticflow.services.executor.worker.group.rendezvous_store import RendezvousStore
from elasticflow.services.executor.worker.group.transport import Membership, Transfer
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle
from elasticflow.services.executor.worker.process.device import Stopwatch
from tests.unit.services.executor.worker.group.test_tcp_connections import connected

CPU = torch.device("cpu")
WAIT_S = 30.0


class ForgottenTransfer:
    """Like gloo's partly sent transfer, which does not notice the end of its connection."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def send(self, *_: object) -> "ForgottenTransfer":
        return self

    def wait(self, *_: object) -> None:
        self.begun.set()
        self.over.wait(WAIT_S)


@pytest.fixture
def group() -> Group:
    return Group(Membership(dist.HashStore(), rank=0, size=1, timeout_s=WAIT_S), generation=1, device=CPU)


def test_a_stuck_thread_is_abandoned_once_and_notices_it(group: Group) -> None:
    group._host.process_group = transfer = ForgottenTransfer()  # type: ignore[assignment]
    ends: SimpleQueue[BaseException | None] = SimpleQueue()

    def exchange() -> None:
        try:
            group.exchange([Transfer(torch.ones(1), 1)], [])
        except BaseException as end:
            ends.put(end)
        else:
            ends.put(None)

    threading.Thread(target=exchange, daemon=True).start()
    assert transfer.begun.wait(WAIT_S)
    group.close()
    assert [group.abandon_waiting_thread(), group.abandon_waiting_thread()] == [True, False]
    transfer.over.set()
    assert isinstance(ends.get(timeout=WAIT_S), ThreadAbandoned)


def test_only_a_waiting_thread_is_abandoned_and_no_wait_begins_in_a_closed_group(group: Group) -> None:
    group._host.process_group = transfer = ForgottenTransfer()  # type: ignore[assignment]
    group.close()
    assert not group.abandon_waiting_thread()
    with pytest.raises(PeerLost):
        group.exchange([Transfer(torch.ones(1), 1)], [])
    assert not transfer.begun.is_set()
    assert not group.abandon_waiting_thread()


def test_received_data_are_waited_for_and_checked_once(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[None] = []
    monkeypatch.setattr(group._on_device, "wait", lambda: waits.append(None))
    group.check_received()
    assert not waits
    group.all_reduce(torch.ones(1)).wait()
    group.check_received()
    group.check_received()
    assert len(waits) == 1
    group.all_reduce(torch.ones(1)).wait()
    group.close()
    with pytest.raises(PeerLost):
        group.check_received()


def test_who_has_waited_for_a_sum_checks_it_once(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's thread wakes the caller: what it notes later would make another check wait again."""

    class Late(threading.Event):
        def set(self) -> None:
            time.sleep(0.05)
            super().set()

    waits: list[None] = []
    monkeypatch.setattr(group._on_device, "wait", lambda: waits.append(None))
    monkeypatch.setattr(group, "_unchecked", Late())
    group.all_reduce(torch.ones(1 << 20)).wait()
    group.check_received()
    time.sleep(0.1)
    group.check_received()
    assert len(waits) == 1


class NeverSums:
    """A library whose sums never end. at_begin: called when one begins."""

    def __init__(self, at_begin: Callable[[], None] = lambda: None) -> None:
        self.at_begin, self.sum = at_begin, torch.futures.Future[list[torch.Tensor]]()

    def allreduce(self, tensors: list[torch.Tensor]) -> "NeverSums":
        self.at_begin()
        return self

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self.sum


@pytest.mark.parametrize("when", ["before it begins", "while it begins"])
def test_no_sum_waits_in_a_closed_group(group: Group, when: str) -> None:
    """The reducer has begun one bucket when the group is closed, and continues with the next."""
    group._host.process_group = NeverSums(group.close)  # type: ignore[assignment]
    if when == "before it begins":
        group.close()
    gradients = torch.ones(3)
    done = group.all_reduce(gradients)
    assert done.done()
    assert done.wait() is gradients


def test_an_aborted_sum_ends_and_is_invalid(group: Group) -> None:
    """torch's reducer would wait for it, and use the result."""
    library = NeverSums()
    group._host.process_group = library  # type: ignore[assignment]
    gradients = torch.ones(3)
    done = group.all_reduce(gradients)
    group.check_received()
    group.close()
    assert done.wait() is gradients
    with pytest.raises(PeerLost):
        group.check_received()
    library.sum.set_result([gradients])  # late, without effect


def test_an_unfinished_sum_does_not_keep_its_group() -> None:
    """gloo's thread holds the sum: if it dropped the group, its destructor would wait for that thread, and abort."""
    group = Group(Membership(dist.HashStore(), rank=0, size=1, timeout_s=WAIT_S), generation=1, device=CPU)
    of_gloo, library = group._host.process_group, NeverSums()
    group._host.process_group = library  # type: ignore[assignment]
    done, transport = group.all_reduce(torch.ones(3)), weakref.ref(group._host)
    del group
    gc.collect()
    assert transport() is None
    library.sum.set_result([torch.ones(3)])
    assert done.done()
    del of_gloo  # in this thread, whatever was found


def test_connections_of_users_while_a_group_is_built_do_not_belong_to_the_group() -> None:
    store = dist.HashStore()

    def build(rank: int) -> Group:
        return Group(Membership(store, rank=rank, size=2, timeout_s=WAIT_S), generation=1, device=CPU)

    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(build, 0)
        RendezvousStore(store, threading.Event(), wait_s=WAIT_S).wait(["gloo-1/arrived"])  # it has begun
        with connected() as (ours, theirs):
            second = build(1)
            first.result(WAIT_S).close()
            ours.sendall(b"still here")
            assert theirs.recv(10) == b"still here"
            with pytest.raises(PeerLost, match="closed by peer"):
                second.all_gather(torch.ones(1))


def test_a_worker_waits_longer_for_its_peers_own_code_than_for_a_collective() -> None:
    store = dist.HashStore()

    def arrive(rank: int) -> str:
        group = Group(Membership(store, rank=rank, size=2, timeout_s=1.0), generation=1, device=CPU)
        if rank:
            time.sleep(2.0)  # it evaluates
        group.await_all()
        if rank:
            time.sleep(2.0)
        try:
            group.barrier()
        except PeerLost as lost:
            return str(lost)
        return ""

    with ThreadPoolExecutor(2) as threads:
        waited, _ = threads.map(arrive, range(2))
    assert "Timed out" in waited


def test_a_worker_that_learns_of_a_loss_does_not_finish_computing_the_step(group: Group) -> None:
    model = torch.nn.Linear(1, 1)
    steps = BitwiseSteps(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        carried=CarriedGradients(model, torch.optim.SGD(model.parameters(), lr=0.1)),
        members=GenerationMembers(group, VirtualNodes(count=4, global_batch_size=4)),
        job_seed=0,
        cpu_throttle=CpuThrottle(1.0),
        stopwatch=Stopwatch(CPU),
        make_scheduler=partial(LockstepScheduler, on_start=lambda: None),
    )
    computed: list[int] = []

    def train(part: int) -> None:
        computed.append(part)
        if part == 1:
            group.close()
        model(torch.ones(1, 1)).sum().backward()

    try:
        with pytest.raises(PeerLost, match="the group was closed"):
            steps.run(0, [partial(train, part) for part in range(4)])
        steps.roll_back()
    finally:
        steps.close()
    assert computed == [0, 1]
    assert model.weight.grad is None
