"""Who waits for peers in vain comes back, or is left behind; it never meddles with whoever took its place."""

# pyright: reportPrivateImportUsage=false

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

import pytest
import torch
import torch.distributed as dist

from services.executor.worker.bitwise import BitwiseSteps
from services.executor.worker.groups import Group, LeftBehind, PeerLost, Transfer
from services.executor.worker.lockstep import Lockstep
from services.executor.worker.meeting_store import MeetingStore
from services.executor.worker.membership import Membership
from services.executor.worker.pacing import Pacer
from services.executor.worker.stopwatch import Stopwatch
from services.executor.worker.virtual_nodes import VirtualNodes
from tests.unit.test_worker_connections import connected

CPU = torch.device("cpu")
WAIT_S = 30.0


class ForgottenTransfer:
    """As gloo's, of which a part has been sent: it does not hear of the end of its connection."""

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def send(self, *_: object) -> "ForgottenTransfer":
        return self

    def wait(self, *_: object) -> None:
        self.begun.set()
        self.over.wait(WAIT_S)


@pytest.fixture
def group() -> Group:
    return Group(dist.HashStore(), generation=1, rank=0, size=1, device=CPU, timeout_s=WAIT_S)


def test_a_thread_that_is_stuck_is_left_behind_once_and_learns_of_it(group: Group) -> None:
    group.process_group = transfer = ForgottenTransfer()  # type: ignore[assignment]
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
    assert [group.leave_behind(), group.leave_behind()] == [True, False]
    transfer.over.set()
    assert isinstance(ends.get(timeout=WAIT_S), LeftBehind)


def test_nobody_is_left_behind_who_does_not_wait_and_nobody_begins_to_in_a_closed_group(group: Group) -> None:
    group.process_group = transfer = ForgottenTransfer()  # type: ignore[assignment]
    group.close()
    assert not group.leave_behind()
    with pytest.raises(PeerLost):
        group.exchange([Transfer(torch.ones(1), 1)], [])
    assert not transfer.begun.is_set()
    assert not group.leave_behind()


class NeverSums:
    """A library whose sums wait for ever. at_begin: called when one begins."""

    def __init__(self, at_begin: Callable[[], None] = lambda: None) -> None:
        self.at_begin, self.sum = at_begin, torch.futures.Future[list[torch.Tensor]]()

    def allreduce(self, tensors: list[torch.Tensor]) -> "NeverSums":
        self.at_begin()
        return self

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        return self.sum


@pytest.mark.parametrize("when", ["before it begins", "while it begins"])
def test_no_sum_is_waited_for_in_a_group_that_was_closed(group: Group, when: str) -> None:
    """The reducer has begun one bucket when the group is closed, and goes on to the next."""
    group.process_group = NeverSums(group.close)  # type: ignore[assignment]
    if when == "before it begins":
        group.close()
    gradients = torch.ones(3)
    done = group.all_reduce(gradients)
    assert done.done()
    assert done.wait() is gradients


def test_a_sum_that_was_given_up_ends_and_is_not_believed(group: Group) -> None:
    """torch's reducer would wait for it, and take what it is given."""
    library = NeverSums()
    group.process_group = library  # type: ignore[assignment]
    gradients = torch.ones(3)
    done = group.all_reduce(gradients)
    group.check()
    group.close()
    assert done.wait() is gradients
    with pytest.raises(PeerLost):
        group.check()
    library.sum.set_result([gradients])  # late, and nobody minds


def test_what_users_connect_while_a_group_is_built_is_not_the_groups() -> None:
    store = dist.HashStore()

    def build(rank: int) -> Group:
        return Group(store, generation=1, rank=rank, size=2, device=CPU, timeout_s=WAIT_S)

    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(build, 0)
        MeetingStore(store, threading.Event(), wait_s=WAIT_S).wait(["gloo-1/0/0"])  # it has begun
        with connected() as (ours, theirs):
            second = build(1)
            first.result(WAIT_S).close()
            ours.sendall(b"still here")
            assert theirs.recv(10) == b"still here"
            with pytest.raises(PeerLost, match="closed by peer"):
                second.all_gather(torch.ones(1))


@dataclass
class OnGpu:
    """Stands for a tensor there."""

    is_cuda: bool = True


class Coalescing:
    """As NCCL: transfers between a start and an end have no work of their own; none at all have none."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def _start_coalescing(self, _: object) -> None:
        self.calls.append("start")

    def _end_coalescing(self, _: object) -> "Coalescing":
        self.calls.append("end")
        return self

    def send(self, tensors: list[object], *_: object) -> "Coalescing | None":
        self.calls.append("send")
        return None if isinstance(tensors[0], OnGpu) else self

    recv = send

    def wait(self, *_: object) -> None:
        self.calls.append("wait")


@pytest.mark.parametrize(
    ("tensor", "calls"),
    [
        (OnGpu(), ["start", "send", "send", "end", "wait"]),
        (torch.ones(1), ["send", "send", "wait", "wait"]),
        (None, []),
    ],
)
def test_only_what_lies_on_gpus_is_sent_as_one(group: Group, tensor: object, calls: list[str]) -> None:
    """A job on GPUs may keep a tensor on the host, too."""
    group.process_group = library = Coalescing()  # type: ignore[assignment]
    transfers = [Transfer(tensor, 1)] if tensor is not None else []  # type: ignore[arg-type]
    group.exchange(transfers, transfers)
    assert library.calls == calls


def test_who_learns_of_a_loss_does_not_compute_the_step_to_its_end(group: Group) -> None:
    model = torch.nn.Linear(1, 1)
    steps = BitwiseSteps(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        members=Membership(group, Pacer(1.0), VirtualNodes(count=4, global_batch_size=4)),
        job_seed=0,
        pacer=Pacer(1.0),
        stopwatch=Stopwatch(CPU),
        take_turns=partial(Lockstep, on_start=lambda: None),
    )
    computed: list[int] = []

    def train(part: int) -> None:
        computed.append(part)
        if part == 1:
            group.close()
        model(torch.ones(1, 1)).sum().backward()

    try:
        with pytest.raises(PeerLost, match="parted"):
            steps.run(0, [partial(train, part) for part in range(4)])
        steps.take_back()
    finally:
        steps.close()
    assert computed == [0, 1]
    assert model.weight.grad is None
