"""Workers that do not know the secret of a generation join none of its groups, and disturb none."""
# pyright: reportPrivateImportUsage=false

import os
import socket
import threading
from collections.abc import Callable
from functools import partial

import psutil
import pytest
import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.group import gloo_transport
from elasticflow.services.executor.worker.group.gloo_transport import connect_all
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.rendezvous_store import RendezvousStore, listening_store
from elasticflow.services.executor.worker.group.tcp_connections import NotAuthentic, derived, opened, proof, sealed
from elasticflow.services.executor.worker.group.transport import Membership
from tests.support.hostile_peers import hostile_process, listening_ports

SECRET, OTHER = "ab" * 32, "cd" * 32
WAIT_S = 60.0
HOST = "127.0.0.1"


def in_threads(*acts: Callable[[], object]) -> list[object]:
    """What each returns or raises."""
    results: list[object] = [None] * len(acts)

    def act(number: int) -> None:
        try:
            results[number] = acts[number]()
        except Exception as error:
            results[number] = error

    threads = [threading.Thread(target=act, args=(number,), daemon=True) for number in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    return results


def test_a_sealed_value_is_read_under_its_own_key_and_secret_only() -> None:
    value = sealed(SECRET, "key", b"value")
    assert opened(SECRET, "key", value) == b"value"
    for secret, key, forged in (
        (OTHER, "key", value),
        (SECRET, "another", value),
        (SECRET, "key", b"value"),
        (SECRET, "key", value + b"x"),
        (SECRET, "key", b""),
        (derived(SECRET, "part"), "key", value),
    ):
        with pytest.raises(NotAuthentic, match=key):
            opened(secret, key, forged)


def test_nothing_changes_without_a_secret() -> None:
    assert (derived("", "part"), sealed("", "key", b"value"), opened("", "key", b"value")) == ("", b"value", b"value")


def test_a_proof_serves_one_pair_of_ranks_in_one_direction() -> None:
    nonce = bytes(32)
    proofs = {
        proof(SECRET, 0, 1, nonce),
        proof(SECRET, 1, 0, nonce),
        proof(SECRET, 1, 2, nonce),
        proof(OTHER, 0, 1, nonce),
    }
    assert len(proofs) == 4


def test_workers_that_know_the_secret_form_a_group() -> None:
    store = dist.HashStore()

    def gathered(rank: int) -> list[int]:
        group = Group(Membership(store, rank=rank, size=3, timeout_s=WAIT_S, secret=SECRET), generation=1, device=None)
        return [int(each) for each in group.all_gather(torch.tensor(rank))]

    assert in_threads(*(partial(gathered, rank) for rank in range(3))) == [[0, 1, 2]] * 3


@pytest.mark.parametrize("secret", [OTHER, ""])
def test_a_worker_with_another_secret_joins_no_group(secret: str) -> None:
    store = dist.HashStore()
    secrets = (SECRET, secret)

    def join(rank: int) -> object:
        never = threading.Event()
        return connect_all(Membership(store, rank=rank, size=2, timeout_s=0.5, aborted=never, secret=secrets[rank]))

    refused, _ = in_threads(partial(join, 0), partial(join, 1))
    assert isinstance(refused, RuntimeError)


def test_a_worker_that_took_the_connection_of_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the addresses in the store are right: gloo takes the first connection."""
    store, whole = dist.HashStore(), gloo_transport.proof

    def without_secret(secret: str, prover: int, verifier: int, nonce: bytes) -> bytes:
        is_taken = prover == 1 and threading.current_thread().name == "hijacker"
        return whole(OTHER if is_taken else secret, prover, verifier, nonce)

    reasons = list[str]()
    monkeypatch.setattr(gloo_transport, "proof", without_secret)
    monkeypatch.setattr(gloo_transport, "warn_unconnected", lambda _, reason: reasons.append(reason))

    def join(rank: int) -> object:
        threading.current_thread().name = "hijacker" if rank == 1 else "worker"
        return connect_all(
            Membership(store, rank=rank, size=2, timeout_s=0.5, aborted=threading.Event(), secret=SECRET)
        )

    refused, _ = in_threads(partial(join, 0), partial(join, 1))
    assert isinstance(refused, RuntimeError)
    assert "rank 1 does not know the secret of this generation" in reasons


def test_a_forged_value_in_the_store_is_refused() -> None:
    """A process that reaches the port of torch's store may write into it."""
    server = listening_store(HOST, wait_s=WAIT_S)
    hostile = dist.TCPStore(HOST, server.port, is_master=False)
    worker = RendezvousStore(server, threading.Event(), wait_s=WAIT_S, secret=SECRET)
    worker.set("switch iteration", "12")
    assert worker.get("switch iteration") == b"12"
    hostile.set("switch iteration", "99")
    with pytest.raises(NotAuthentic, match="switch iteration"):
        worker.get("switch iteration")


def test_the_store_listens_at_its_own_address_only() -> None:
    server = listening_store(HOST, wait_s=WAIT_S)
    listens = [
        each.laddr.ip
        for each in psutil.Process().net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr.port == server.port
    ]
    assert listens == [HOST]


def test_behind_an_address_translation_it_listens_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(*_: object, **__: object) -> socket.socket:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", elsewhere)
    server = listening_store(HOST, wait_s=WAIT_S)
    dist.TCPStore(HOST, server.port, is_master=False).set("key", "value")
    assert server.get("key") == b"value"


def test_the_ports_of_a_connected_group_take_no_connection() -> None:
    store, before = dist.HashStore(), set(listening_ports(os.getpid()))

    def joined(rank: int) -> Group:
        return Group(Membership(store, rank=rank, size=2, timeout_s=WAIT_S), generation=1, device=None)

    groups = in_threads(partial(joined, 0), partial(joined, 1))
    ports = set(listening_ports(os.getpid())) - before
    assert len(ports) == len(groups) == 2
    for port in ports:
        with pytest.raises(TimeoutError):
            socket.create_connection((HOST, port), timeout=0.5)


def test_a_hostile_process_on_the_ports_disturbs_no_group() -> None:
    server = listening_store(HOST, wait_s=WAIT_S)

    def joined(rank: int) -> Group:
        store = server if rank == 0 else dist.TCPStore(HOST, server.port, is_master=False)
        return Group(Membership(store, rank=rank, size=2, timeout_s=WAIT_S, secret=SECRET), generation=1, device=None)

    with hostile_process(server.port):
        groups = in_threads(partial(joined, 0), partial(joined, 1))
        assert all(isinstance(group, Group) for group in groups)
    listening = listening_ports(os.getpid())
    assert len(listening) >= 3, "the store, and gloo of each worker"

    def sums(group: object) -> list[list[int]]:
        assert isinstance(group, Group)
        return [[int(each) for each in group.all_gather(torch.tensor(step + group.rank))] for step in range(300)]

    with hostile_process(*listening):
        results = in_threads(*(partial(sums, group) for group in groups))
    assert results == [[[step, step + 1] for step in range(300)]] * 2
