"""The server of the page: its application, its address, and its life."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

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


def application(page: Page, sessions: Sessions, on_opened: Callable[[], None]) -> Starlette:
    """on_opened: called when a browser has used its link."""

    async def open_link(request: Request) -> Response:
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
