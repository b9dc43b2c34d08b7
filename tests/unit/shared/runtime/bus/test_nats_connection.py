"""A reader waits for its connection, also between nats-py's knowing of a break and its saying so."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog.testing

from elasticflow.shared.errors import BadSettings, BusClosed
from elasticflow.shared.runtime.bus.nats import connection as nats_connection
from elasticflow.shared.runtime.bus.nats.connection import Connection
from elasticflow.shared.runtime.process.nats_access import WITH_TOKEN

URL = "nats://127.0.0.1:4222"
Told = Callable[[], Awaitable[None]]


class FakeClient:
    """nats-py's client as far as a connection asks it: the test says what it knows, and when it tells."""

    def __init__(self) -> None:
        self.is_connected = False
        self.is_closed = False
        self.last_error: Exception | None = None
        self.tell: dict[str, Told] = {}

    async def connect(self, servers: list[str], **options: Any) -> None:
        self.tell = {name: told for name, told in options.items() if name.endswith("_cb")}
        self.is_connected = True

    async def subscribe(self, subject: str, **_: Any) -> None: ...

    def new_inbox(self) -> str:
        return "_INBOX.1"

    async def drain(self) -> None: ...

    async def close(self) -> None:
        self.is_connected, self.is_closed = False, True
        await self.tell["closed_cb"]()


class Reader:
    """Asks for the connection until it has it, as the readers of the ledger do, and counts."""

    def __init__(self, connection: Connection) -> None:
        self.num_asked = 0
        self._connection = connection

    async def read(self) -> None:
        connected = False
        while not connected:
            self.num_asked += 1
            assert self.num_asked < 10, "it asks again and again, and no other task runs"
            connected = await self._connection.wait_connected(None)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    made = FakeClient()
    monkeypatch.setattr(nats_connection, "Client", lambda: made)
    return made


@pytest.fixture
async def connection(client: FakeClient) -> Connection:
    made = Connection(URL, None)
    await made.open(URL, name="reader", wait_s=1.0, access=WITH_TOKEN)
    return made


async def test_a_url_that_is_none_is_refused_before_there_is_a_connection() -> None:
    with pytest.raises(BadSettings, match="NATS_URL must be like"):
        await Connection("s3cret", None).open("s3cret", name="reader", wait_s=1.0, access=WITH_TOKEN)


async def test_websockets_need_a_library_that_is_not_installed_with_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    url = "ws://127.0.0.1:4222"
    with pytest.raises(BadSettings, match="pip install aiohttp"):
        await Connection(url, None).open(url, name="reader", wait_s=1.0, access=WITH_TOKEN)


async def test_only_what_its_caller_did_not_do_is_told_where_nobody_listens(
    client: FakeClient, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = structlog.testing.CapturingLogger()
    monkeypatch.setattr(nats_connection, "log", told)
    await connection.open(URL, name="reader", wait_s=1.0, access=WITH_TOKEN)
    await client.tell["disconnected_cb"]()
    await client.tell["reconnected_cb"]()
    await connection.close()
    assert [call.args for call in told.calls] == [("bus_disconnected",), ("bus_reconnected",)]


async def test_a_break_that_is_known_but_not_yet_told_makes_no_reader_spin(
    client: FakeClient, connection: Connection
) -> None:
    reader = Reader(connection)
    client.is_connected = False  # nats-py's task, which will tell, has not had its first turn
    reading = asyncio.create_task(reader.read())
    await asyncio.wait([reading], timeout=0)
    await client.tell["disconnected_cb"]()
    client.is_connected = True
    await client.tell["reconnected_cb"]()
    await reading
    assert reader.num_asked == 1


async def test_who_waits_hears_that_there_will_be_no_connection(client: FakeClient, connection: Connection) -> None:
    client.is_connected = False
    reading = asyncio.create_task(Reader(connection).read())
    await asyncio.wait([reading], timeout=0)
    await connection.close()
    with pytest.raises(BusClosed, match="by us"):
        await reading


async def test_a_wait_has_its_time(client: FakeClient, connection: Connection) -> None:
    assert await connection.wait_connected(0.0)
    client.is_connected = False
    assert not await connection.wait_connected(0.0)
