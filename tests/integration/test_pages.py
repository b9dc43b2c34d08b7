"""HttpServer over real sockets, with valid and invalid requests."""

import asyncio
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest

from elasticflow.shared.runtime.process import http_server as pages_module
from elasticflow.shared.runtime.process.http_server import HttpResponse, HttpServer, page_is_ok
from elasticflow.shared.runtime.process.metrics import Metrics, serve_metrics

HOST = "127.0.0.1"
LONGER_THAN_A_HEAD = 1_000_000


def broken() -> HttpResponse:
    raise LookupError("nothing to show")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    pages = {
        "/good": lambda: HttpResponse(b"all is well\n"),
        "/ill": lambda: HttpResponse(b"no bus\n", HTTPStatus.SERVICE_UNAVAILABLE),
        "/broken": broken,
    }
    server = HttpServer(pages, host=HOST, port=0)
    yield server.port
    server.close()


async def said(port: int, request: bytes) -> bytes:
    """All bytes that the server sends until the connection ends."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(request)
        writer.write_eof()
        async with asyncio.timeout(60.0):
            return await reader.read()
    except OSError:  # the server did not read all of it
        return b""
    finally:
        writer.close()


def read(port: int, path: str) -> tuple[int, str, str]:
    """Status, type and text, as an HTTP client reads them."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=60.0) as page:
            return page.status, page.headers["Content-Type"], page.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/good", 200, "all is well\n"),
        ("/good?name=all", 200, "all is well\n"),
        ("/ill", 503, "no bus\n"),
        ("/other", 404, "Not Found\n"),
    ],
)
async def test_a_page_is_read_by_its_path(port: int, path: str, status: int, text: str) -> None:
    assert await asyncio.to_thread(read, port, path) == (status, "text/plain; charset=utf-8", text)
    assert await page_is_ok(HOST, port, path, timeout_s=60.0) is (status == 200)


async def test_a_blocked_service_reports_that_it_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its event loop has no time to render the page."""
    server = HttpServer({"/healthz": lambda: HttpResponse(b"ok\n")}, host=HOST, port=0)
    with monkeypatch.context() as patch:
        patch.setattr(pages_module, "_PATIENCE_S", 0.05)
        busy = read(server.port, "/healthz")  # blocks the event loop
    assert busy[::2] == (503, "the service does not answer\n")
    assert await page_is_ok(HOST, server.port, "/healthz", timeout_s=60.0)
    server.close()


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /good HTTP/1.1\r\n\r\n",
        b"GET //[ HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01" + bytes(200),
        b"x" * LONGER_THAN_A_HEAD,
    ],
)
async def test_an_invalid_request_gets_no_page_and_the_next_one_does(port: int, request_: bytes) -> None:
    assert b" 200 " not in await said(port, request_)
    assert await page_is_ok(HOST, port, "/good", timeout_s=60.0)


async def test_a_failing_page_ends_only_its_connection(port: int) -> None:
    assert await said(port, b"GET /broken HTTP/1.1\r\n\r\n") == b""
    assert await page_is_ok(HOST, port, "/good", timeout_s=60.0)


async def test_without_a_server_no_page_is_healthy() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    assert not await page_is_ok(HOST, port, "/healthz", timeout_s=0.05)
    server.close()
    await server.wait_closed()
    assert not await page_is_ok(HOST, port, "/healthz", timeout_s=60.0)


async def test_a_service_shows_its_metrics_and_why_it_is_unhealthy() -> None:
    metrics = Metrics("admission", "default")
    metrics.decisions_total.inc()
    reasons: list[str | None] = [None, "not connected to NATS"]
    server = serve_metrics(metrics, lambda: reasons.pop(0), host=HOST, port=0)
    port = server.port
    assert await asyncio.to_thread(read, port, "/healthz") == (200, "text/plain; charset=utf-8", "ok\n")
    assert (await asyncio.to_thread(read, port, "/healthz"))[::2] == (503, "not connected to NATS\n")
    status, content_type, text = await asyncio.to_thread(read, port, "/metrics")
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    assert 'ef_decisions_total{pool="default",service="admission"} 1.0' in text
    server.close()


async def test_connections_without_a_request_leave_others_their_turn(port: int) -> None:
    idle = [await asyncio.open_connection(HOST, port) for _ in range(3 * pages_module._MAX_CONNECTIONS)]
    assert await page_is_ok(HOST, port, "/good", timeout_s=60.0)
    async with asyncio.timeout(60.0):
        assert await idle[0][0].read() == b"", "the oldest is closed"
    assert threading.active_count() < 2 * pages_module._MAX_CONNECTIONS
    for _, writer in idle:
        writer.close()
