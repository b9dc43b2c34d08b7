"""What our transport does with NCCL, shown on a library that records the calls."""

# pyright: reportPrivateImportUsage=false

import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

from elasticflow.services.executor.worker.elastic import groups, nccl_transport
from elasticflow.services.executor.worker.elastic.groups import Group
from elasticflow.services.executor.worker.elastic.nccl_transport import NcclTransport
from elasticflow.services.executor.worker.elastic.peer_loss import PeerLost
from elasticflow.services.executor.worker.elastic.rendezvous_store import RendezvousAborted
from elasticflow.services.executor.worker.elastic.transport import Transfer

GPU = torch.device("cuda", 0)
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
        self.options: SimpleNamespace | None = None

    def construct(self, _store: object, _rank: int, _size: int, options: SimpleNamespace) -> "Library":
        self.environment, self.options = dict(os.environ), options
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

    def send(self, *_: object) -> None:
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
    options = lambda: SimpleNamespace(config=SimpleNamespace(blocking=1))  # noqa: E731
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


def transport(timeout_s: float = WAIT_S, aborted: threading.Event | None = None) -> NcclTransport:
    store = dist.HashStore()
    return NcclTransport(store, 0, 1, device=GPU, timeout_s=timeout_s, aborted=aborted or threading.Event())


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
    assert library.options is not None
    assert library.options.config.blocking == 0


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


def test_a_worker_whose_abort_hangs_ends_as_a_lost_peer(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(groups, "device_transport", lambda *_, **__: transport())
    monkeypatch.setattr(groups, "end_as_lost_peer", ended.append)
    group = Group(dist.HashStore(), generation=1, rank=0, size=1, device=GPU, timeout_s=WAIT_S)
    library.hangs = {"abort"}
    group.close()
    assert ended == ["NCCL did not answer within 0 s"]


def test_no_collective_begins_after_an_error_that_nccl_found(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "device_transport", lambda *_, **__: transport())
    group = Group(dist.HashStore(), generation=1, rank=0, size=1, device=GPU, timeout_s=WAIT_S)
    library.reported = ErrorType.COMM_ERROR
    while "abort" not in library.calls:
        threading.Event().wait(0.01)
    with pytest.raises(PeerLost, match="COMM_ERROR"):
        group.all_gather(torch.ones(1))
