"""What our transport does with NCCL, shown on a library that records the calls."""

# pyright: reportPrivateImportUsage=false

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

from elasticflow.services.executor.worker.group import groups, nccl_transport
from elasticflow.services.executor.worker.group.groups import DeviceIdentity, Group
from elasticflow.services.executor.worker.group.nccl_transport import NcclTransport
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.rendezvous_store import RendezvousAborted
from elasticflow.services.executor.worker.group.transport import Membership, Transfer

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
WAIT_S = 30.0


class Library:
    """NCCL's group and torch's group around it. hangs: the calls that do not return.

    As in torch, an abort waits for the lock that a set-up holds.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.lock = threading.Lock()
        self.timeout = timedelta()
        self.hangs = set[str]()
        self.fails = set[str]()
        self.over = threading.Event()
        self.reported = ErrorType.SUCCESS
        self.environment: dict[str, str] = {}
        self.config = SimpleNamespace(blocking=1, max_ctas=None)
        self.sent: list[int] = []  # numbers, by transfer
        self.types: list[torch.dtype] = []  # of all that was sent or received

    def construct(self, _store: object, _rank: int, _size: int, options: SimpleNamespace) -> "Library":
        self.environment = dict(os.environ)
        assert options.config is self.config
        self.timeout = options._timeout
        return self

    def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            threading.Event().wait(0.01)

    def called(self, name: str) -> "Library":
        self.calls.append(name)
        if name in self.hangs:
            self.over.wait(WAIT_S)
        if name in self.fails:
            raise dist.DistBackendError(f"{name} failed")
        return self

    def eager_connect_single_device(self, _: object) -> None:
        with self.lock:
            self.called("connect")

    def abort(self) -> None:
        self.calls.append("begin to abort")
        with self.lock:
            self.called("abort")

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout

    def allreduce(self, _: object) -> "Library":
        return self.called("sum")

    def broadcast(self, *_: object) -> "Library":
        return self.called("broadcast")

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        done = torch.futures.Future[list[torch.Tensor]]()
        done.set_result([torch.ones(1)])
        return done

    def get_error(self) -> ErrorType:
        return self.reported

    def send(self, tensors: list[torch.Tensor], *_: object) -> None:
        self.sent += [tensor.numel() for tensor in tensors]
        self.types += [tensor.dtype for tensor in tensors]
        self.called("send")

    def recv(self, tensors: list[torch.Tensor], *_: object) -> None:
        self.types += [tensor.dtype for tensor in tensors]
        self.called("receive")

    def wait(self) -> None:
        self.called("wait")

    def _start_coalescing(self, _: object) -> None:
        self.called("start")

    def _end_coalescing(self, _: object) -> "Library":
        return self.called("end")

    def _register_backend(self, *_: object) -> None: ...
    def _set_default_backend(self, *_: object) -> None: ...


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    library = Library()
    options = lambda: SimpleNamespace(config=library.config)  # noqa: E731
    nccl = type(
        "ProcessGroupNCCL", (), {"Options": staticmethod(options), "__new__": lambda _, *a: library.construct(*a)}
    )
    around = type("ProcessGroup", (dist.ProcessGroup,), {"__new__": lambda *_: library})
    monkeypatch.setattr(
        nccl_transport, "dist", SimpleNamespace(**{**vars(dist), "ProcessGroupNCCL": nccl, "ProcessGroup": around})
    )
    monkeypatch.setattr(nccl_transport, "_ABORT_S", 0.3)
    yield library
    library.over.set()


def transport(
    timeout_s: float = WAIT_S,
    aborted: threading.Event | None = None,
    *,
    rank: int = 0,
    size: int = 1,
    device: torch.device = GPU,
) -> NcclTransport:
    store = dist.HashStore()
    aborted = aborted or threading.Event()
    member = Membership(store, rank=rank, size=size, timeout_s=timeout_s, aborted=aborted)
    return NcclTransport(member, device=device)


def transfers(number: int) -> list[Transfer]:
    return [Transfer(torch.ones(1), peer) for peer in range(number)]


def test_torch_does_not_end_the_process_for_errors_of_our_groups_only(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NCCL_ENABLE_MONITORING", "1")
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    transport()
    assert library.environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert library.environment["TORCH_NCCL_ENABLE_MONITORING"] == "0"
    assert library.environment["TORCH_NCCL_RETHROW_CUDA_ERRORS"] == "0"
    assert os.environ["TORCH_NCCL_ENABLE_MONITORING"] == "1"
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in os.environ
    assert library.config.blocking == 0


@pytest.mark.parametrize("has_limit", [True, False])
def test_the_buffers_of_a_group_are_bounded_where_torch_has_an_option_for_it(library: Library, has_limit: bool) -> None:
    if not has_limit:
        del library.config.max_ctas
    transport()
    assert vars(library.config) == ({"blocking": 0, "max_ctas": 16} if has_limit else {"blocking": 0})


@pytest.fixture
def streams(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a GPU whose tensors lie on the host."""
    stream = SimpleNamespace(synchronize=lambda: library.called("synchronize"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize("rank", [0, 2])
def test_each_two_workers_are_connected_before_the_first_step(library: Library, rank: int) -> None:
    """By one number to each peer, and from each: the library connects two workers at their first transfer."""
    transport(rank=rank, size=3, device=CPU)
    assert library.calls == ["connect", "start", "send", "send", "receive", "receive", "end", "wait", "synchronize"]
    assert library.sent == [1, 1]


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize("call", ["end", "synchronize"])
def test_a_first_transfer_that_hangs_is_given_up(library: Library, call: str) -> None:
    library.hangs = {call}
    with pytest.raises(TimeoutError, match="did not answer"):
        transport(timeout_s=0.2, size=2, device=CPU)
    library.until(lambda: library.calls[-1] == "abort")


@pytest.mark.parametrize("number", [0, 2])
def test_transfers_are_one_operation_and_none_are_no_operation(library: Library, number: int) -> None:
    transport().begin_exchange(transfers(number), transfers(number))()
    assert library.calls[1:] == (["start", "send", "send", "receive", "receive", "end", "wait"] if number else [])


@pytest.mark.parametrize("call", ["send", "receive"])
def test_an_operation_ends_if_one_of_its_transfers_fails(library: Library, call: str) -> None:
    """Else no later operation of this thread would begin."""
    library.fails = {call}
    with pytest.raises(dist.DistBackendError):
        transport().begin_exchange(transfers(1), transfers(1))()
    assert library.calls[-1] == "end"


def test_a_connection_that_hangs_is_given_up_and_aborted_once_torch_ends_it(library: Library, ended: list[str]) -> None:
    """Its worker trains in another group meanwhile: neither does it wait, nor does it end."""
    library.hangs = {"connect"}
    with pytest.raises(TimeoutError, match="did not answer"):
        transport(timeout_s=0.2)
    library.until(lambda: library.calls == ["connect", "begin to abort"])
    library.over.set()
    library.until(lambda: library.calls[-1] == "abort")
    assert not ended


def test_a_connection_that_is_not_needed_any_more_is_given_up(library: Library, ended: list[str]) -> None:
    library.hangs = {"connect"}
    aborted = threading.Event()
    threading.Timer(0.2, aborted.set).start()
    with pytest.raises(RendezvousAborted):
        transport(aborted=aborted)
    library.until(lambda: library.calls == ["connect", "begin to abort"])
    assert not ended


def test_a_connection_that_fails_raises_its_error(library: Library) -> None:
    library.fails = {"connect"}
    with pytest.raises(dist.DistBackendError, match="connect failed"):
        transport()


def test_an_error_that_nccl_finds_ends_the_waits(library: Library) -> None:
    found = transport()
    assert not found.error
    library.reported = ErrorType.REMOTE_ERROR
    library.until(lambda: "abort" in library.calls)
    assert found.error == "NCCL reported REMOTE_ERROR"


def test_an_abort_that_fails_has_ended_the_calls(library: Library) -> None:
    library.fails = {"abort"}
    working().abort()
    assert library.calls[-1] == "abort"


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why this process would have ended."""
    reasons: list[str] = []
    monkeypatch.setattr(nccl_transport, "end_as_lost_peer", reasons.append)
    monkeypatch.setattr(groups, "identity_of", lambda _: DeviceIdentity(host="a", kind="cuda", has_nccl=True))
    return reasons


CANNOT_ABORT = "an abort of its communicator: NCCL did not answer within 0 s"


def working() -> NcclTransport:
    """The GPU may wait for its calls."""
    used = transport()
    used.all_reduce(torch.ones(1))
    return used


def test_a_worker_whose_abort_hangs_ends_as_a_lost_peer(
    library: Library, monkeypatch: pytest.MonkeyPatch, ended: list[str]
) -> None:
    monkeypatch.setattr(groups, "device_transport", lambda *_, **__: working())
    group = Group(Membership(dist.HashStore(), rank=0, size=1, timeout_s=WAIT_S), generation=1, device=GPU)
    library.hangs = {"abort"}
    group.close()
    assert ended == [CANNOT_ABORT]


@pytest.mark.parametrize(
    "call", [lambda used: used.begin_exchange(transfers(1), []), lambda used: used.broadcast([torch.ones(1)], source=0)]
)
def test_any_call_lets_the_gpu_wait(
    library: Library, ended: list[str], monkeypatch: pytest.MonkeyPatch, call: Callable[[NcclTransport], object]
) -> None:
    monkeypatch.setattr(nccl_transport, "broadcast_coalesced", lambda *_: None)
    library.hangs = {"abort"}
    call(used := transport())
    used.abort()
    assert ended == [CANNOT_ABORT]


def test_a_prepared_generation_that_another_one_replaces_ends_no_worker(library: Library, ended: list[str]) -> None:
    """It has not trained, so that nothing waits for it."""
    group = Group(
        Membership(dist.HashStore(), rank=0, size=1, timeout_s=WAIT_S), generation=1, device=GPU, may_connect_later=True
    )
    library.hangs = {"abort"}
    group.close()
    library.until(lambda: library.calls == ["connect", "begin to abort", "abort"])
    assert not ended


def test_a_worker_drops_a_connection_that_its_peer_lacks(
    library: Library, monkeypatch: pytest.MonkeyPatch, ended: list[str]
) -> None:
    library.hangs = {"abort"}

    def connect(_: object, member: Membership, **__: object) -> NcclTransport:
        if member.rank == 1:
            raise PeerLost("NCCL did not answer")
        return transport()

    monkeypatch.setattr(groups, "device_transport", connect)
    store = dist.HashStore()

    def join(rank: int) -> Group:
        return Group(
            Membership(store, rank=rank, size=2, timeout_s=WAIT_S), generation=1, device=GPU, may_connect_later=True
        )

    with ThreadPoolExecutor(2) as threads:
        for group in list(threads.map(join, range(2))):
            group.release()
    library.until(lambda: library.calls == ["connect", "begin to abort", "abort"])
    assert not ended


def test_an_error_that_nccl_found_ends_a_worker_whose_abort_hangs(library: Library, ended: list[str]) -> None:
    library.hangs = {"abort"}
    working()
    library.reported = ErrorType.REMOTE_ERROR
    library.until(lambda: ended == [CANNOT_ABORT])


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize("may_connect_later", [False, True])
def test_a_group_has_the_time_out_of_the_job_however_it_connected(
    library: Library, monkeypatch: pytest.MonkeyPatch, may_connect_later: bool
) -> None:
    """Also for what NCCL connects in its first calls, of which torch reads the time-out once in a process."""
    monkeypatch.delenv("TORCH_NCCL_NONBLOCKING_TIMEOUT", raising=False)
    more: Any = {"may_connect_later": may_connect_later}
    Group(
        Membership(dist.HashStore(), rank=0, size=1, timeout_s=240.0), generation=1, device=GPU, **more
    ).connect_device()
    assert library.timeout == timedelta(seconds=240)
    assert os.environ["TORCH_NCCL_NONBLOCKING_TIMEOUT"] == "240"


@pytest.mark.usefixtures("ended")
def test_a_set_up_beside_a_busy_group_has_its_own_time_out(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "_BESIDE_S", 0.2)
    library.hangs = {"connect"}
    group = Group(
        Membership(dist.HashStore(), rank=0, size=1, timeout_s=240.0), generation=1, device=GPU, may_connect_later=True
    )
    library.hangs, library.lock = set(), threading.Lock()  # another communicator
    group.connect_device()
    assert library.calls.count("connect") == 2
    assert library.timeout == timedelta(seconds=240)


@pytest.mark.parametrize(
    ("dtype", "sent_as"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.bool, torch.uint8),
        (torch.int16, torch.uint8),
        (torch.complex64, torch.uint8),
        (torch.float8_e4m3fn, torch.uint8),
    ],
)
def test_bytes_are_exchanged_where_nccl_lacks_a_type(
    library: Library, dtype: torch.dtype, sent_as: torch.dtype
) -> None:
    tensor = torch.zeros(3, dtype=dtype)
    transport().begin_exchange([Transfer(tensor, 1)], [Transfer(torch.empty((), dtype=dtype), 1)])()
    assert library.types == [sent_as] * 2
    assert library.sent == [tensor.nbytes if sent_as == torch.uint8 else 3]


@pytest.mark.usefixtures("ended")
def test_no_collective_begins_after_an_error_that_nccl_found(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "device_transport", lambda *_, **__: transport())
    group = Group(Membership(dist.HashStore(), rank=0, size=1, timeout_s=WAIT_S), generation=1, device=GPU)
    library.reported = ErrorType.COMM_ERROR
    library.until(lambda: "abort" in library.calls)
    with pytest.raises(PeerLost, match="COMM_ERROR"):
        group.all_gather(torch.ones(1))
