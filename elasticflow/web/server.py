"""The server of the page: its application, its address, and its life."""

import asyncio
import contextlib
import socket
from asyncio import TimerHandle, Transport
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from elasticflow.shared.errors import CannotListen, PortTaken
from elasticflow.web.other_policy import COMPARING
from elasticflow.web.quoting import QUOTING
from elasticflow.web.reading import READING, Page
from elasticflow.web.security import OPEN_PATH, Guard, Sessions
from elasticflow.web.writing import WRITING

STATIC = Path(__file__).parent / "static"
# A redirect would count as a visit from another site if a mail or a chat had the link: no cookie would be sent.
_OPENED = (
    '<!doctype html><html lang="en"><title>ElasticFlow</title><meta http-equiv="refresh" content="0;url=/">'
    '<link rel="icon" href="/static/icon.svg">'
)
_SHUTDOWN_S = 1  # streams have no end of their own
_HEAD_S, _BODY_S = 10.0, 60.0  # until all of it has arrived


def application(page: Page, sessions: Sessions, on_opened: Callable[[], None]) -> Starlette:
    """on_opened: called when a browser has used its link."""

    async def open_link(request: Request) -> Response:
        if request.method == "HEAD":  # of a program that looks at links before a browser opens them
            return Response()
        session = sessions.open(request.query_params.get("token", ""))
        if session is None:
            return PlainTextResponse("this link was used; `eflow ui` prints a new one after each use\n", 403)
        on_opened()
        return HTMLResponse(_OPENED, headers={"set-cookie": sessions.set_cookie(session)})

    async def index(request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    routes = [
        Route("/", index),
        Route(OPEN_PATH, open_link),
        *READING,
        *WRITING,
        *COMPARING,
        *QUOTING,
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, sessions=sessions)],
        exception_handlers={HTTPException: _as_text},
    )
    app.state.page = page
    return app


async def _as_text(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code)


class _ImpatientProtocol(H11Protocol):
    """Closes a connection whose request does not arrive: thousands of these would use up the process's descriptors."""

    _deadline: TimerHandle | None = None
    _awaited: object = None

    def connection_made(self, transport: Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._await(h11.IDLE, _HEAD_S)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            self._await(state, _BODY_S)
        elif state is h11.IDLE:
            self._await(state, _HEAD_S)
        else:
            self._await(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(None)
        super().connection_lost(exc)

    def _await(self, state: object, within_s: float = 0.0) -> None:
        """Each part has its time once, however slowly its bytes arrive. state: None once the request is complete."""
        if self._awaited is state:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._awaited = state
        self._deadline = None if state is None else self.loop.call_later(within_s, self.transport.close)


def listening_socket(host: str, port: int) -> socket.socket:
    """port 0: a free one. Raises PortTaken, CannotListen."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno is None:
            raise CannotListen(host, port, error.strerror or str(error)) from None
        if "in use" in (error.strerror or ""):
            raise PortTaken(host, port) from None
        raise CannotListen(host, port, error.strerror or str(error)) from None


async def serve(app: Starlette, listening: socket.socket, beside: Callable[[], Awaitable[None]]) -> None:
    """Serve until a signal ends the process. beside: keeps the sources up to date; its failure ends the server."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=_SHUTDOWN_S,
        http=_ImpatientProtocol,
        h11_max_incomplete_event_size=16_384,
    )
    server = uvicorn.Server(config)
    task = asyncio.ensure_future(beside())

    def end_server(done: "asyncio.Future[Any]") -> None:
        server.should_exit = server.should_exit or (not done.cancelled() and done.exception() is not None)

    task.add_done_callback(end_server)
    try:
        await server.serve(sockets=[listening])
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
