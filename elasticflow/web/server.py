"""The server of the page: its application, its address, and its life."""

import asyncio
import secrets
import socket
from asyncio import TimerHandle, Transport
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from elasticflow.shared.errors import cannot_listen, port_taken
from elasticflow.web.command_routes import QUOTING, WRITING
from elasticflow.web.other_policy import COMPARING
from elasticflow.web.read_routes import READING, Page

# --- security ------------------------------------------------------------------------------------------
# Who may look: browsers of this machine that were opened with a link of this process (decision record 0057).
#
# Every request is checked: its Host, its Origin, its session, and for writes a header that no other page can send.

OPEN_PATH = "/open"
CSRF_HEADER = "x-csrf-token"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass(slots=True)
class Sessions:
    """The browsers that have opened a link. Each link opens one browser."""

    port: int
    csrf_token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _links: set[str] = field(default_factory=set[str])
    _sessions: set[str] = field(default_factory=set[str])

    @property
    def cookie_name(self) -> str:
        """The name has the port: browsers share cookies between the ports of a host."""
        return f"eflow_{self.port}"

    def new_link(self) -> str:
        token = secrets.token_urlsafe(32)
        self._links.add(token)
        return f"http://127.0.0.1:{self.port}{OPEN_PATH}?token={token}"

    def open(self, token: str) -> str | None:
        """The session of the browser that opens this link; None if the link is unknown or was opened before."""
        if not _contains(self._links, token):
            return None
        self._links.discard(token)
        session = secrets.token_urlsafe(32)
        self._sessions.add(session)
        return session

    def has(self, cookie_header: str) -> bool:
        try:
            cookie = SimpleCookie(cookie_header).get(self.cookie_name)
        except CookieError:
            return False
        return cookie is not None and _contains(self._sessions, cookie.value)

    def set_cookie(self, session: str) -> str:
        return f"{self.cookie_name}={session}; Path=/; HttpOnly; SameSite=Strict"


def _contains(known: set[str], token: str) -> bool:
    return any(secrets.compare_digest(each.encode(), token.encode()) for each in known)


class Guard:
    """Refuses a request that fails a check, and adds the headers of a strict page to every response."""

    def __init__(self, app: ASGIApp, sessions: Sessions) -> None:
        self._app, self._sessions = app, sessions
        self._hosts = {f"{name}:{sessions.port}" for name in _LOOPBACK}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        problem = self._problem(scope["method"], scope["path"], Headers(scope=scope))
        if problem is None:
            await self._app(scope, receive, send_with_headers)
            return
        status, text = problem
        await PlainTextResponse(f"{text}\n", status)(scope, receive, send_with_headers)

    def _problem(self, method: str, path: str, headers: Headers) -> tuple[HTTPStatus, str] | None:
        """Why the request is refused; None if it is not."""
        host, origin = headers.get("host", ""), headers.get("origin")
        reads = method in ("GET", "HEAD")
        if host not in self._hosts:
            return HTTPStatus.MISDIRECTED_REQUEST, "this page answers only at 127.0.0.1 and localhost"
        if (origin is None and not reads) or (origin is not None and origin != f"http://{host}"):
            return HTTPStatus.FORBIDDEN, "the request comes from another site"
        if path == OPEN_PATH and reads:
            return None
        if not self._sessions.has(headers.get("cookie", "")):
            return HTTPStatus.UNAUTHORIZED, "open the link that `eflow ui` printed; each link opens one browser"
        if not reads and not secrets.compare_digest(headers.get(CSRF_HEADER, "").encode(), self._csrf_token):
            return HTTPStatus.FORBIDDEN, f"the header {CSRF_HEADER} is missing or wrong"
        return None

    @property
    def _csrf_token(self) -> bytes:
        return self._sessions.csrf_token.encode()


# --- server --------------------------------------------------------------------------------------------

STATIC = Path(__file__).parent / "static"
# A redirect would count as a visit from another site if a mail or a chat had the link: no cookie would be sent.
_OPENED = (
    '<!doctype html><html lang="en"><title>ElasticFlow</title><meta http-equiv="refresh" content="0;url=/">'
    '<link rel="icon" href="/static/icon.svg">'
)
_SHUTDOWN_S = 1  # for requests that are being answered
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
    app.state.page, app.state.ending = page, asyncio.Event()  # of the server, and with it of all streams
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


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams first: uvicorn waits for them, and then reports each as an error."""
        self._ending.set()
        await super().shutdown(sockets)


def listening_socket(host: str, port: int) -> socket.socket:
    """port 0: a free one. Raises CannotStart."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno is None:
            raise cannot_listen(host, port, error.strerror or str(error)) from None
        if "in use" in (error.strerror or ""):
            raise port_taken(host, port) from None
        raise cannot_listen(host, port, error.strerror or str(error)) from None


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
    server = _Server(config, app.state.ending)
    task = asyncio.ensure_future(beside())

    def end_server(done: "asyncio.Future[Any]") -> None:
        server.should_exit = server.should_exit or (not done.cancelled() and done.exception() is not None)

    task.add_done_callback(end_server)
    try:
        await server.serve(sockets=[listening])
    finally:
        task.cancel()
        await asyncio.wait((task,))  # Ctrl-C, which uvicorn hands on, cancels this wait: it must not be lost
        if not task.cancelled():
            task.result()
