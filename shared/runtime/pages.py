"""Small pages over HTTP, and a look at one: all that a service shows of itself.

No library: one would cost each process of a pool a tenth of a second of its start.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

_MAX_HEAD_BYTES = 16_384  # of a request: its first line, and headers that nobody reads
_PATIENCE_S = 10.0  # with whoever asks, and then takes the answer


class Page(NamedTuple):
    """Made anew for each request."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


async def serve_pages(
    pages: Mapping[str, Callable[[], Page]], *, host: str, port: int
) -> tuple[asyncio.Server, int]:
    """Serve each page at its path until the server is closed. Returns the real port too. Raises OSError."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nobody_listens = contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError)
        with contextlib.closing(writer), nobody_listens:
            async with asyncio.timeout(_PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_answer(pages, head))
                await writer.drain()

    server = await asyncio.start_server(answer, host, port, limit=_MAX_HEAD_BYTES)
    return server, server.sockets[0].getsockname()[1]


def _answer(pages: Mapping[str, Callable[[], Page]], head: bytes) -> bytes:
    method, _, rest = head.partition(b" ")
    target, _, _ = rest.partition(b" ")
    if method not in (b"GET", b"HEAD"):
        page = _refusal(HTTPStatus.METHOD_NOT_ALLOWED)
    else:
        shown = pages.get(_path(target))
        page = _refusal(HTTPStatus.NOT_FOUND) if shown is None else shown()
    headers = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        "Connection: close",
    )
    return "\r\n".join((*headers, "", "")).encode() + (b"" if method == b"HEAD" else page.body)


def _path(target: bytes) -> str:
    """Without a query; "" where the request names no place."""
    try:
        return urlsplit(target.decode("ascii")).path
    except ValueError:  # not even an address
        return ""


def _refusal(status: HTTPStatus) -> Page:
    return Page(f"{status.phrase}\n".encode(), status)


async def page_is_ok(host: str, port: int, path: str, *, timeout_s: float) -> bool:
    """Whether there is such a page, and its status is 200."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(
                    f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()
                )
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):  # ValueError: a line without an end
        return False
