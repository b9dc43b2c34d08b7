"""Who waits at a meeting that is given up waits no longer; what was built for it goes."""

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist

from services.executor.worker.groups import Group, PeerLost
from services.executor.worker.meeting import Invitation, invitation, meet
from services.executor.worker.meeting_store import GivenUp, MeetingStore
from services.executor.worker.mesh import Mesh, connect_all
from shared.messages.detection import DetectionTimes
from shared.messages.job import JobSpec
from shared.messages.to_worker import Assignment

PATIENCE_S = 30.0


SPEC = JobSpec(training_function="a:B", global_batch_size=8, max_iterations=10, deadline_in_s=60.0)


def invited_to(place: int, size: int) -> Invitation:
    """With all the time in the world."""
    assignment = Assignment(
        job_id="job",
        generation=1,
        rank=place,
        world_size=size,
        spec=SPEC,
        checkpoint_dir="unused",
        detection=DetectionTimes(stall_timeout_s=2000.0),
    )
    return invitation(assignment, torch.device("cpu"))


def raised_in_threads(*acts: Callable[[], object]) -> tuple[Callable[[], None], list[BaseException]]:
    """How to wait for their ends, and what they have raised by then."""
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
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    return ended, errors


class NobodyTells:
    """A channel that never brings an address."""

    def receive_rendezvous(self, generation: int, timeout_s: float) -> str:
        return queue.SimpleQueue[str]().get(timeout=timeout_s)


def test_nobody_waits_for_one_who_never_comes():
    """Two of three: one at the door, one before an address is known."""
    given_up = threading.Event()
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ended, errors = raised_in_threads(
        lambda: meet(invited_to(0, 3), {}, NobodyTells(), server, hand_over=True, given_up=given_up),  # pyright: ignore
        lambda: meet(invited_to(1, 3), {}, NobodyTells(), None, hand_over=True, given_up=given_up),  # pyright: ignore
    )
    given_up.set()
    ended()
    assert [type(error) for error in errors] == [PeerLost, PeerLost]


def test_nobody_waits_for_one_who_dies_while_connections_are_made():
    given_up = threading.Event()
    store = dist.HashStore()

    def group(rank: int) -> Group:
        return Group(
            store,
            generation=1,
            rank=rank,
            size=3,
            device=torch.device("cpu"),
            timeout_s=1000.0,
            given_up=given_up,
        )

    ended, errors = raised_in_threads(lambda: group(0), lambda: group(1))
    MeetingStore(store, threading.Event(), wait_s=PATIENCE_S).wait(["gloo-1/0/0", "gloo-1/0/1"])
    given_up.set()
    ended()
    assert len(errors) == 2
    assert all("the meeting was given up" in str(error) for error in errors)


def test_a_store_for_a_meeting_waits_as_long_as_it_is_told():
    store = MeetingStore(dist.HashStore(), threading.Event(), wait_s=PATIENCE_S)
    with pytest.raises(RuntimeError, match="absent did not come within 0 s"):
        store.wait(["absent"], timedelta(milliseconds=1))
    store.set("here", "yes")
    assert (store.get("here"), store.add("number", 2)) == (b"yes", 2)
    given_up = threading.Event()
    given_up.set()
    with pytest.raises(GivenUp):
        MeetingStore(dist.HashStore(), given_up, wait_s=PATIENCE_S).get("absent")


class OfOneWhoDies(dist.Store):
    """A store, as one uses it who tells where it listens, and then is gone."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self._store = store

    def set(self, key: str, value: str) -> None:
        self._store.set(key, value)
        raise SystemExit

    def get(self, key: str) -> bytes:
        return self._store.get(key)


def test_who_waits_for_a_connection_to_one_who_has_died_can_be_told_to_stop():
    given_up, store = threading.Event(), dist.HashStore()

    def connect(store: dist.Store, rank: int) -> Mesh:
        return connect_all(store, rank, 3, timeout_s=1000.0, given_up=given_up)

    ended, errors = raised_in_threads(
        lambda: connect(store, 0), lambda: connect(store, 1), lambda: connect(OfOneWhoDies(store), 2)
    )
    MeetingStore(store, threading.Event(), wait_s=PATIENCE_S).wait(["gloo-1/0/0", "gloo-1/0/1", "gloo-1/0/2"])
    given_up.set()
    ended()
    assert len(errors) == 3


def test_where_one_takes_long_to_connect_all_try_again(monkeypatch: pytest.MonkeyPatch):
    tried: list[tuple[int, float]] = []
    allowed: list[timedelta] = []

    class Gloo:
        def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
            tried.append((rank, timeout.total_seconds()))
            if timeout < timedelta(seconds=0.5):  # the one by itself, the other by its closing
                raise RuntimeError("Connect timeout" if rank else "Connection closed by peer")

        _set_default_timeout = allowed.append

    monkeypatch.setattr("services.executor.worker.mesh.dist.ProcessGroupGloo", Gloo)
    store, never = dist.HashStore(), threading.Event()
    ended, errors = raised_in_threads(
        *(partial(connect_all, store, rank, 2, timeout_s=PATIENCE_S, given_up=never) for rank in range(2))
    )
    ended()
    assert not errors
    assert sorted(tried) == [(0, 0.2), (0, 0.8), (1, 0.2), (1, 0.8)]
    assert allowed == [timedelta(seconds=PATIENCE_S)] * 2
