"""Who may look: browsers of this machine that were opened with a link of this process (decision record 0057).

Every request is checked: its Host, its Origin, its session, and for writes a header that no other page can send.
"""

import secrets
from dataclasses import dataclass, field
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        """With the port: browsers share cookies between the ports of a host."""
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
