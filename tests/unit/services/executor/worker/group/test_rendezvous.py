"""An aborted rendezvous ends all waits in it, and releases what was built for it."""

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.group.gloo_transport import Mesh, connect_all
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.rendezvous import (
    RendezvousSpecification,
    join_rendezvous,
    rendezvous_specification,
)
from elasticflow.services.executor.worker.group.rendezvous_store import RendezvousAborted, RendezvousStore
from elasticflow.services.executor.worker.group.transport import Membership
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.timeouts import FailureTimeouts
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan

TIMEOUT_S = 30.0


SPEC = JobSpec(training_function="a:B", global_batch_size=8, max_iterations=10, deadline_in_s=60.0)


def specification_of(
    rendezvous_rank: int, size: int, virtual_nodes_by_rank: tuple[int, ...] = ()
) -> RendezvousSpecification:
    """With long timeouts."""
    assignment = Assignment(
        job_id="job",
        plan=GenerationPlan(generation=1, world_size=size, virtual_nodes_by_rank=virtual_nodes_by_rank),
        rank=rendezvous_rank,
        spec=SPEC,
        checkpoint_dir="unused",
        timeouts=FailureTimeouts(stall_timeout_s=2000.0),
    )
    return rendezvous_specification(assignment, torch.device("cpu"))


def errors_in_threads(*acts: Callable[[], object]) -> tuple[Callable[[], None], list[BaseException]]:
    """A function that waits for the threads, and the errors that they raise."""
    errors: list[BaseException] = []

    def act(one: Callable[[], object]) -> None:
        try:
            one()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=act, args=(one,), daemon=True) for one in acts]
    for thread in threads:
        thread.start()

    def ended() -> None:
        for thread in threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()

    return ended, errors


class NoAddress:
    """A channel that never receives an address."""

    def receive_rendezvous_address(self, generation: int, timeout_s: float) -> str:
        return queue.SimpleQueue[str]().get(timeout=timeout_s)


def test_an_aborted_rendezvous_does_not_wait_for_a_missing_worker():
    """Two of three workers: one waits in the store, one for its address."""
    aborted = threading.Event()
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ended, errors = errors_in_threads(
        lambda: join_rendezvous(specification_of(0, 3), {}, NoAddress(), server, transfer_state=True, aborted=aborted),  # pyright: ignore
        lambda: join_rendezvous(specification_of(1, 3), {}, NoAddress(), None, transfer_state=True, aborted=aborted),  # pyright: ignore
    )
    aborted.set()
    ended()
    assert [type(error) for error in errors] == [PeerLost, PeerLost]


def test_workers_that_would_divide_the_virtual_nodes_differently_form_no_group():
    """The one that notices fails; the other waits for it."""
    aborted = threading.Event()
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    even, uneven = specification_of(0, 2), specification_of(1, 2, (6, 2))

    def joins(specification: RendezvousSpecification) -> None:
        store = dist.TCPStore("127.0.0.1", server.port)
        join_rendezvous(specification, {}, NoAddress(), store, transfer_state=False, aborted=aborted)  # pyright: ignore

    waits, others = errors_in_threads(lambda: joins(even))
    with pytest.raises(TrainingFailed, match=r"virtual nodes by rank: \(6, 2\) here, \(\) there"):
        joins(uneven)
    aborted.set()
    waits()
    assert [type(error) for error in others] == [PeerLost]


def test_an_aborted_rendezvous_does_not_wait_for_a_worker_that_died_while_connecting():
    aborted = threading.Event()
    store = dist.HashStore()

    def group(rank: int) -> Group:
        return Group(
            Membership(store, rank=rank, size=3, timeout_s=1000.0, aborted=aborted),
            generation=1,
            device=torch.device("cpu"),
        )

    ended, errors = errors_in_threads(lambda: group(0), lambda: group(1))
    absent = RendezvousStore(dist.PrefixStore("gloo-1", store), threading.Event(), wait_s=TIMEOUT_S)
    absent.add("arrived", 1)
    absent.set("all", "arrived")
    absent.wait(["0/0", "0/1"])
    aborted.set()
    ended()
    assert len(errors) == 2
    assert all("the rendezvous was aborted" in str(error) for error in errors)


def test_a_rendezvous_store_waits_until_a_key_a_timeout_or_an_abort():
    store = RendezvousStore(dist.HashStore(), threading.Event(), wait_s=TIMEOUT_S)
    with pytest.raises(RuntimeError, match="timed out after 0 s waiting for absent"):
        store.wait(["absent"], timedelta(milliseconds=1))
    store.set("here", "yes")
    assert (store.get("here"), store.add("number", 2)) == (b"yes", 2)
    aborted = threading.Event()
    aborted.set()
    with pytest.raises(RendezvousAborted):
        RendezvousStore(dist.HashStore(), aborted, wait_s=TIMEOUT_S).get("absent")


class DyingClientStore(dist.Store):
    """A store whose client dies after it has published its listening address."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self._store = store

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)
        if key.endswith("0/2"):
            raise SystemExit

    def add(self, key: str, value: int) -> int:
        return self._store.add(key, value)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def get(self, key: str) -> bytes:
        return self._store.get(key)


def test_a_wait_for_a_connection_to_a_dead_worker_can_be_aborted():
    aborted, store = threading.Event(), dist.HashStore()

    def connect(store: dist.Store, rank: int) -> Mesh:
        return connect_all(Membership(store, rank=rank, size=3, timeout_s=1000.0, aborted=aborted))

    ended, errors = errors_in_threads(
        lambda: connect(store, 0), lambda: connect(store, 1), lambda: connect(DyingClientStore(store), 2)
    )
    RendezvousStore(store, threading.Event(), wait_s=TIMEOUT_S).wait(["gloo-1/0/0", "gloo-1/0/1", "gloo-1/0/2"])
    aborted.set()
    ended()
    assert len(errors) == 3


def test_all_workers_retry_if_one_connects_slowly(monkeypatch: pytest.MonkeyPatch):
    tried: list[tuple[int, float]] = []
    allowed: list[timedelta] = []

    class Gloo:
        def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
            tried.append((rank, timeout.total_seconds()))
            if timeout < timedelta(seconds=0.5):  # one by itself, the other because the first closed its connections
                raise RuntimeError("Connect timeout" if rank else "Connection closed by peer")

        _set_default_timeout = allowed.append

    monkeypatch.setattr("elasticflow.services.executor.worker.group.gloo_transport.dist.ProcessGroupGloo", Gloo)
    store = dist.HashStore()
    members = [Membership(store, rank=rank, size=2, timeout_s=TIMEOUT_S) for rank in range(2)]
    ended, errors = errors_in_threads(*(partial(connect_all, member) for member in members))
    ended()
    assert not errors
    assert sorted(tried) == [(0, 0.2), (0, 0.8), (1, 0.2), (1, 0.8)]
    assert allowed == [timedelta(seconds=TIMEOUT_S)] * 2


def test_a_worker_does_not_begin_an_attempt_before_the_others(monkeypatch: pytest.MonkeyPatch):
    """It would fail while they wait, and they would fail after it: the workers of a slow machine never met."""
    store = dist.HashStore()
    num_arrived: list[int] = []

    class Gloo:
        def __init__(self, store_of_attempt: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
            num_arrived.append(store.add(f"gloo-{5 * timeout.total_seconds():g}/arrived", 0))
            if len(num_arrived) == 1:
                raise RuntimeError("Connect timeout")

        def _set_default_timeout(self, timeout: timedelta) -> None:
            pass

    monkeypatch.setattr("elasticflow.services.executor.worker.group.gloo_transport.dist.ProcessGroupGloo", Gloo)
    members = [Membership(store, rank=rank, size=3, timeout_s=TIMEOUT_S) for rank in range(3)]
    ended, errors = errors_in_threads(*(partial(connect_all, member) for member in members))
    ended()
    assert (errors, num_arrived) == ([], [3] * 6)
