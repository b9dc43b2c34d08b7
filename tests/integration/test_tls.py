"""TLS between clients and servers, and between servers: a plain or unknown counterpart is refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from elasticflow.shared.errors import BadSettings, Unavailable
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.streams import StreamLimits
from elasticflow.shared.runtime.process.nats_access import NatsAccess
from testbed.real_pool import persistently
from testbed.secured_pool import deployed
from tests.support.certificates import Certificates, make_certificates
from tests.support.shared_pool import POOL

WAIT_S = 240.0


@pytest.fixture
def ours(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path, "ours")


@pytest.fixture
def foreign(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path, "foreign")


def tls_files(certificates: Certificates, *, verify: bool = False) -> dict[str, str]:
    files = f'cert_file: "{certificates.certificate}", key_file: "{certificates.key}", ca_file: "{certificates.ca}"'
    clients = f"tls {{ {files}, handshake_first: auto, verify: {str(verify).lower()} }}"
    return {"tls.conf": clients, "route_tls.conf": f"tls {{ {files} }}"}


@pytest.fixture
async def url(tmp_path: Path, ours: Certificates) -> AsyncIterator[str]:
    async with deployed(tmp_path / "server", access=tls_files(ours)) as url:
        yield url


async def test_a_client_with_the_right_authority_uses_the_pool(url: str, ours: Certificates) -> None:
    bus = await connect_nats(url, name="test", wait_s=WAIT_S, access=NatsAccess(ca=ours.ca))
    await bus.ensure_pool(POOL)
    assert await bus.pool_exists(POOL)
    await bus.close()


async def test_a_client_with_another_authority_does_not_trust_the_server(url: str, foreign: Certificates) -> None:
    with pytest.raises(BadSettings, match="EF_NATS_CA: does not sign the certificate of tls://"):
        await connect_nats(url, name="test", wait_s=WAIT_S, access=NatsAccess(ca=foreign.ca))


async def test_a_client_without_an_authority_does_not_trust_the_server(url: str) -> None:
    with pytest.raises(BadSettings, match="EF_NATS_CA"):
        await connect_nats(url, name="test", wait_s=WAIT_S)


async def test_the_server_refuses_plaintext(url: str) -> None:
    host, _, port = url.rpartition("@")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b'CONNECT {"auth_token":"t","verbose":true}\r\nPING\r\n')
    answer = await asyncio.wait_for(reader.read(), WAIT_S)  # up to the end of the connection
    assert b"PONG" not in answer
    assert b"+OK" not in answer
    writer.close()


async def test_a_client_with_an_authority_sends_no_token_to_a_server_without_tls(ours: Certificates) -> None:
    received = bytearray()

    async def plaintext_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"s","version":"2.12.0","max_payload":1048576,"headers":true}\r\n')
        received.extend(await reader.read(4096))
        writer.close()

    server = await asyncio.start_server(plaintext_server, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Unavailable):
        await connect_nats(f"nats://s3cret@127.0.0.1:{port}", name="test", access=NatsAccess(ca=ours.ca))
    server.close()
    assert received  # the beginning of a handshake
    assert b"s3cret" not in received
    assert b"CONNECT" not in received


async def test_a_server_may_ask_clients_for_certificates(
    tmp_path: Path, ours: Certificates, foreign: Certificates
) -> None:
    async with deployed(tmp_path / "server", access=tls_files(ours, verify=True)) as url:
        own = NatsAccess(ca=ours.ca, certificate=ours.certificate, key=ours.key)
        await (await connect_nats(url, name="test", wait_s=WAIT_S, access=own)).close()
        for wrong in (
            NatsAccess(ca=ours.ca),
            NatsAccess(ca=ours.ca, certificate=foreign.certificate, key=foreign.key),
        ):
            with pytest.raises(Unavailable):
                await connect_nats(url, name="test", access=wrong)


def route_address(server: Path) -> tuple[str, int]:
    """Where it listens for other servers. server: its folder."""
    (ports,) = server.glob("*.ports")
    host, _, port = json.loads(ports.read_text())["cluster"][0].rpartition("/")[2].rpartition(":")
    return host, int(port)


async def answer_to_plaintext_route(server: Path) -> bytes:
    """To one that knows the password and uses no TLS."""
    reader, writer = await asyncio.open_connection(*route_address(server))
    connect = {"user": "route", "pass": "t", "cluster": "elasticflow", "name": "intruder"}
    writer.write(b"CONNECT %s\r\nPING\r\n" % json.dumps(connect).encode())
    answer = b""
    async with asyncio.timeout(WAIT_S):
        while b"PONG" not in answer and (more := await reader.read(4096)):
            answer += more
    writer.close()
    return answer


async def test_servers_replicate_over_encrypted_routes_and_refuse_plaintext(tmp_path: Path, ours: Certificates) -> None:
    async with deployed(tmp_path / "server", num_servers=3, access=tls_files(ours)) as url:
        limits = StreamLimits(replicas=3)
        bus = await connect_nats(url, name="test", wait_s=WAIT_S, limits=limits, access=NatsAccess(ca=ours.ca))
        await persistently(lambda: bus.ensure_pool(POOL))
        await bus.close()
        assert b"PONG" not in await answer_to_plaintext_route(tmp_path / "server" / "nats-1")


async def test_servers_without_tls_accept_plaintext_routes(tmp_path: Path) -> None:
    """Else the refusal above would show nothing."""
    async with deployed(tmp_path / "server", num_servers=3):
        assert b"PONG" in await answer_to_plaintext_route(tmp_path / "server" / "nats-1")


@pytest.mark.parametrize(
    ("access", "problem"),
    [
        (NatsAccess(ca=Path("/nowhere.pem")), "EF_NATS_CA=/nowhere.pem: cannot be used"),
        (NatsAccess(certificate=Path("/c.pem"), key=Path("/k.pem")), "set EF_NATS_CA too"),
        (NatsAccess(ca=Path("/ca.pem"), key=Path("/k.pem")), "set both of them, or none"),
        (NatsAccess(credentials=Path("/nowhere.seed")), "EF_NATS_CREDS=/nowhere.seed: cannot be read"),
    ],
)
def test_wrong_files_are_named(access: NatsAccess, problem: str) -> None:
    (found,) = access.problems()
    assert problem in found
