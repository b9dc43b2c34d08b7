"""What our transport does with NCCL, shown on a library that records the calls."""

# pyright: reportPrivateImportUsage=false

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

from elasticflow.services.executor.worker.elastic import groups, nccl_transport
from elasticflow.services.executor.worker.elastic.device_identity import DeviceIdentity
from elasticflow.services.executor.worker.elastic.groups import Group
from elasticflow.services.executor.worker.elastic.nccl_transport import NcclTransport
from elasticflow.services.executor.worker.elastic.peer_loss import PeerLost
from elasticflow.services.executor.worker.elastic.rendezvous_store import RendezvousAborted
from elasticflow.services.executor.worker.elastic.transport import Transfer

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
WAIT_S = 30.0


class Library:
    """NCCL's group and torch's group around it. hangs: the calls that do not return."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.hangs = set[str]()
        self.fails = set[str]()
        self.over = threading.Event()
        self.reported = ErrorType.SUCCESS
        self.environment: dict[str, str] = {}
        self.config = SimpleNamespace(blocking=1, max_ctas=None)
        self.sent: list[int] = []  # numbers, by transfer

    def construct(self, _store: object, _rank: int, _size: int, options: SimpleNamespace) -> "Library":
        self.environment = dict(os.environ)
        assert options.config is self.config
        return self

    def called(self, name: str) -> "Library":
        self.calls.append(name)
        if name in self.hangs:
            self.over.wait(WAIT_S)
        if name in self.fails:
            raise dist.DistBackendError(f"{name} failed")
        return self

    def eager_connect_single_device(self, _: object) -> None:
        self.called("connect")

    def abort(self) -> None:
        self.called("abort")

    def get_error(self) -> ErrorType:
        return self.reported

    def send(self, tensors: list[torch.Tensor], *_: object) -> None:
        self.sent += [tensor.numel() for tensor in tensors]
        self.called("send")

    def recv(self, *_: object) -> None:
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
    return NcclTransport(store, rank, size, device=device, timeout_s=timeout_s, aborted=aborted or threading.Event())


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
    assert library.calls[-1] == "abort"


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


def test_a_connection_that_hangs_is_given_up(library: Library) -> None:
    library.hangs = {"connect"}
    with pytest.raises(TimeoutError, match="did not answer"):
        transport(timeout_s=0.2)
    assert library.calls == ["connect", "abort"]


def test_a_connection_that_is_not_needed_any_more_is_given_up(library: Library) -> None:
    library.hangs = {"connect"}
    aborted = threading.Event()
    threading.Timer(0.2, aborted.set).start()
    with pytest.raises(RendezvousAborted):
        transport(aborted=aborted)
    assert library.calls == ["connect", "abort"]


def test_a_connection_that_fails_raises_its_error(library: Library) -> None:
    library.fails = {"connect"}
    with pytest.raises(dist.DistBackendError, match="connect failed"):
        transport()


def test_an_error_that_nccl_finds_ends_the_waits(library: Library) -> None:
    found = transport()
    assert not found.error
    library.reported = ErrorType.REMOTE_ERROR
    while "abort" not in library.calls:
        threading.Event().wait(0.01)
    assert found.error == "NCCL reported REMOTE_ERROR"


def test_an_abort_that_fails_has_ended_the_calls(library: Library) -> None:
    library.fails = {"abort"}
    transport().abort()
    assert library.calls[-1] == "abort"


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why this process would have ended."""
    reasons: list[str] = []
    monkeypatch.setattr(nccl_transport, "end_as_lost_peer", reasons.append)
    monkeypatch.setattr(groups, "identity_of", lambda _: DeviceIdentity(host="a", kind="cuda"))
    return reasons


CANNOT_ABORT = "an abort of its communicator: NCCL did not answer within 0 s"


def test_a_worker_whose_abort_hangs_ends_as_a_lost_peer(
    library: Library, monkeypatch: pytest.MonkeyPatch, ended: list[str]
) -> None:
    monkeypatch.setattr(groups, "device_transport", lambda *_, **__: transport())
    group = Group(dist.HashStore(), generation=1, rank=0, size=1, device=GPU, timeout_s=WAIT_S)
    library.hangs = {"abort"}
    group.close()
    assert ended == [CANNOT_ABORT]


def test_a_worker_that_cannot_give_up_its_connection_ends_as_a_lost_peer(library: Library, ended: list[str]) -> None:
    """The end of the abort replaces no error."""
    library.hangs = {"connect", "abort"}
    aborted = threading.Event()
    threading.Timer(0.2, aborted.set).start()
    with pytest.raises(RendezvousAborted):
        transport(aborted=aborted)
    with pytest.raises(TimeoutError, match="did not answer"):
        transport(timeout_s=0.1)
    assert ended == [CANNOT_ABORT] * 2


def test_a_worker_that_cannot_drop_a_connection_that_its_peer_lacks_ends_as_a_lost_peer(
    library: Library, monkeypatch: pytest.MonkeyPatch, ended: list[str]
) -> None:
    library.hangs = {"abort"}

    def connect(_gloo: object, _store: object, rank: int, *_: object, **__: object) -> NcclTransport:
        if rank == 1:
            raise PeerLost("NCCL did not answer")
        return transport()

    monkeypatch.setattr(groups, "device_transport", connect)
    store = dist.HashStore()

    def join(rank: int) -> Group:
        return Group(store, generation=1, rank=rank, size=2, device=GPU, timeout_s=WAIT_S, may_connect_later=True)

    with ThreadPoolExecutor(2) as threads:
        for group in list(threads.map(join, range(2))):
            group.release()
    assert ended == [CANNOT_ABORT]


def test_an_error_that_nccl_found_ends_a_worker_whose_abort_hangs(library: Library, ended: list[str]) -> None:
    library.hangs = {"abort"}
    transport()
    library.reported = ErrorType.REMOTE_ERROR
    while not ended:
        threading.Event().wait(0.01)
    assert ended == [CANNOT_ABORT]


@pytest.mark.usefixtures("ended")
def test_no_collective_begins_after_an_error_that_nccl_found(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "device_transport", lambda *_, **__: transport())
    group = Group(dist.HashStore(), generation=1, rank=0, size=1, device=GPU, timeout_s=WAIT_S)
    library.reported = ErrorType.COMM_ERROR
    while "abort" not in library.calls:
        threading.Event().wait(0.01)
    with pytest.raises(PeerLost, match="COMM_ERROR"):
        group.all_gather(torch.ones(1))
