"""A connection is identified by its socket, not by its descriptor, which is reused once it is free."""

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from elasticflow.services.executor.worker.group.tcp_connections import (
    close_to_others,
    connections,
    connections_at,
    connections_to,
    limit_reply_time,
    shut_down,
)


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@contextmanager
def connected(host: str = "127.0.0.1") -> Iterator[tuple[socket.socket, socket.socket]]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        ours = socket.create_connection(server.getsockname()[:2])
        theirs, _ = server.accept()
    with ours, theirs:
        yield ours, theirs


def test_listeners_and_sockets_of_other_families_are_no_connections() -> None:
    before = connections()
    with connected() as both, socket.create_server(("127.0.0.1", 0)):
        first, second = socket.socketpair()
        with first, second:
            assert {c.descriptor for c in connections() - before} == {end.fileno() for end in both}
    assert connections() == before


def test_a_connection_is_found_by_its_peers_port_and_shut_down_for_both_ends() -> None:
    with connected() as (ours, theirs):
        (connection,) = connections_to(ours.getpeername()[1])
        shut_down(connection)
        assert ours.recv(1) == theirs.recv(1) == b""


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here"))],
)
def test_connections_are_found_by_an_address_in_the_systems_format(host: str) -> None:
    address = socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
    flow = bytes(4) if ":" in host else b""
    with connected(host) as both, connected():
        port = both[1].getsockname()[1].to_bytes(2, "big")
        found = connections_at(b"among " + port + flow + address + b" others")
        assert {connection.descriptor for connection in found} == {end.fileno() for end in both}


def test_a_wait_for_a_reply_ends_at_its_limit() -> None:
    with connected() as (ours, _):
        (connection,) = connections_to(ours.getpeername()[1])
        limit_reply_time(connection, 0.05)
        with pytest.raises(BlockingIOError):
            ours.recv(1)


def test_the_next_socket_with_the_same_descriptor_is_untouched() -> None:
    """A listener that is shut down accepts no connections: its clients would wait forever."""
    with connected() as (ours, _):
        (connection,) = connections_to(ours.getpeername()[1])
        with socket.create_server(("127.0.0.1", 0)) as server:
            os.dup2(server.fileno(), ours.fileno())  # as if gloo had closed the one, and torch opened the other
            shut_down(connection)
            limit_reply_time(connection, 1.0)
            with socket.create_connection(server.getsockname(), timeout=10.0), server.accept()[0]:
                pass
        assert connection not in connections()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_a_listener_that_is_closed_to_others_keeps_its_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as another:
        host, port = server.getsockname()
        ours = socket.create_connection((host, port))
        theirs, _ = server.accept()
        close_to_others(struct.pack("!H", port) + socket.inet_aton(host))
        with ours, theirs:
            with pytest.raises(TimeoutError):
                socket.create_connection((host, port), timeout=0.5)
            ours.sendall(b"on")
            theirs.sendall(b"back")
            assert (theirs.recv(9), ours.recv(9)) == (b"on", b"back")
        socket.create_connection(another.getsockname(), timeout=5.0).close()
