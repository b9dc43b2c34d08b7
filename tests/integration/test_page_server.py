"""The server of the page: how a link is used up, and what becomes of requests that do not arrive."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from elasticflow.web import server
from elasticflow.web.server import Sessions, application, listening_socket, serve

HOST = "127.0.0.1"


def test_ctrl_c_ends_the_server_as_it_ends_other_commands() -> None:
    async def press() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    page: Any = object()
    with contextlib.closing(listening_socket(HOST, 0)) as listening, pytest.raises(KeyboardInterrupt):
        asyncio.run(serve(application(page, Sessions(0), lambda: None), listening, press))


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[Sessions, int]]:
    listening = listening_socket(HOST, 0)
    port = listening.getsockname()[1]
    sessions, page = Sessions(port), object()
    served: Any = asyncio.create_task(serve(application(page, sessions, lambda: None), listening, asyncio.Event().wait))  # pyright: ignore[reportArgumentType]
    try:
        yield sessions, port
    finally:
        served.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await served
        listening.close()


async def answer(port: int, request: str) -> bytes:
    """All that the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(request.encode())
    try:
        async with asyncio.timeout(60.0):
            return await reader.read()
    finally:
        writer.close()


async def test_a_look_at_a_link_does_not_use_it_up() -> None:
    async with serving() as (sessions, port):
        path = sessions.new_link().partition(str(port))[2]
        head, get, again = [
            await answer(port, f"{method} {path} HTTP/1.1\r\nHost: {HOST}:{port}\r\nConnection: close\r\n\r\n")
            for method in ("HEAD", "GET", "GET")
        ]
    assert head.startswith(b"HTTP/1.1 200")
    assert b"set-cookie" not in head
    assert b"set-cookie" in get
    assert again.startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    "part", ["", "GET / HTTP/1.1\r\nHost: x", "POST /api/quote HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"]
)
async def test_a_request_that_does_not_arrive_is_not_awaited_for_ever(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(server, "_HEAD_S", 0.2)
    monkeypatch.setattr(server, "_BODY_S", 0.2)
    async with serving() as (_, port):
        said = await answer(port, part)
    assert said.count(b"HTTP/1.1") == (1 if "POST" in part else 0), "its head alone is answered: it has no session"


async def test_a_connection_serves_one_request_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEAD_S", 60.0)
    async with serving() as (_, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        for _ in range(3):
            writer.write(f"GET / HTTP/1.1\r\nHost: {HOST}:{port}\r\n\r\n".encode())
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 401")
            await reader.readuntil(b"browser\n")
        writer.close()
