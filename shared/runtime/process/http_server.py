"""Small pages over HTTP, and a look at one: all that a service shows of itself.

The standard library serves them, from threads of its own; what a page says is made in the event loop, as all else is
that looks at a service's state. (aiohttp costs each process of a pool a tenth of a second of its start.)
"""

import asyncio
import contextlib
import http.client
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, NamedTuple

_PATIENCE_S = 10.0  # for the client to send and to receive, and for the event loop
_MAX_CONNECTIONS = 64  # each has a thread


class HttpResponse(NamedTuple):
    """Made anew for each request."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


class HttpServer:
    """Each page at its path, until closed; port 0: any. Made in a running event loop. Raises OSError."""

    def __init__(self, pages: Mapping[str, Callable[[], HttpResponse]], *, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()

        async def made(path: str) -> HttpResponse:
            page = pages.get(path)
            return page() if page else HttpResponse(b"Not Found\n", HTTPStatus.NOT_FOUND)

        def page_at(path: str) -> HttpResponse:
            try:
                return asyncio.run_coroutine_threadsafe(made(path), loop).result(_PATIENCE_S)
            except (TimeoutError, RuntimeError):  # RuntimeError: the loop has ended
                return HttpResponse(b"the service does not answer\n", HTTPStatus.SERVICE_UNAVAILABLE)

        class Handler(_Handler):
            page_of = staticmethod(page_at)

        class Server(_Server):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        self._server = Server((host, port), Handler)
        Thread(target=self._server.serve_forever, name="pages", daemon=True).start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def close(self) -> None:
        self._server.socket.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread: shutdown() need not wait for it
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """Closes the oldest connection for a new one where a client opens too many: others are answered nevertheless."""

    def __init__(self, *arguments: Any) -> None:
        self._open: dict[socket.socket, None] = {}
        self._lock = Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= _MAX_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):  # its thread reads the end
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)


class _Handler(BaseHTTPRequestHandler):
    page_of: Callable[[str], HttpResponse]
    timeout = _PATIENCE_S

    def do_GET(self) -> None:
        page = self.page_of(self.path.partition("?")[0])
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        self.wfile.write(page.body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


async def page_is_ok(host: str, port: int, path: str, *, timeout_s: float) -> bool:
    """Whether there is such a page, and its status is 200."""
    return await asyncio.to_thread(_is_ok, host, port, path, timeout_s)


def _is_ok(host: str, port: int, path: str, timeout_s: float) -> bool:
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=timeout_s)) as connection:
        try:
            connection.request("GET", path)
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
