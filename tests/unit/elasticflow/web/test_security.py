"""Every request is checked: host, origin, session, and the header of a write."""

from collections.abc import Mapping
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from elasticflow.web.server import CSRF_HEADER, Guard, Sessions

PORT = 8420
HOST = f"127.0.0.1:{PORT}"


async def inner(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("inside")(scope, receive, send)


async def answer(
    sessions: Sessions, headers: Mapping[str, str], *, method: str = "GET", path: str = "/"
) -> tuple[int, dict[str, str]]:
    """Status and headers."""
    sent: list[Any] = []
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await Guard(inner, sessions)(scope, receive, send)
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


def opened(sessions: Sessions) -> dict[str, str]:
    """Headers of a browser that has opened a link."""
    session = sessions.open(sessions.new_link().partition("token=")[2])
    assert session is not None
    return {"host": HOST, "cookie": f"other=1; {sessions.cookie_name}={session}"}


async def test_a_browser_that_opened_the_link_reads() -> None:
    sessions = Sessions(PORT)
    status, headers = await answer(sessions, opened(sessions))
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["cache-control"] == "no-store"


def test_a_link_opens_one_browser() -> None:
    sessions = Sessions(PORT)
    token = sessions.new_link().partition("token=")[2]
    assert sessions.open(token) is not None
    assert sessions.open(token) is None
    assert sessions.open("") is None


def test_no_script_and_no_other_site_gets_the_cookie() -> None:
    cookie = Sessions(PORT).set_cookie("secret")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


@pytest.mark.parametrize(
    ("changes", "method", "status"),
    [
        ({"host": f"evil.example:{PORT}"}, "GET", 421),
        ({"host": "127.0.0.1:1"}, "GET", 421),
        ({"host": ""}, "GET", 421),
        ({"origin": "http://evil.example"}, "GET", 403),
        ({"origin": "null"}, "GET", 403),
        ({"origin": f"http://{HOST}"}, "GET", 200),
        ({"cookie": ""}, "GET", 401),
        ({"cookie": "eflow_8420=guess"}, "GET", 401),
        ({"cookie": "\x7f;;=="}, "GET", 401),
        ({CSRF_HEADER: "right"}, "POST", 403),  # without an origin
        ({"origin": f"http://{HOST}"}, "POST", 403),  # without the header
        ({"origin": f"http://{HOST}", CSRF_HEADER: "wrong"}, "POST", 403),
        ({"origin": f"http://{HOST}", CSRF_HEADER: "right"}, "POST", 200),
        ({"origin": f"http://{HOST}", CSRF_HEADER: "right", "cookie": ""}, "POST", 401),
    ],
)
async def test_each_check_refuses(changes: dict[str, str], method: str, status: int) -> None:
    sessions = Sessions(PORT, csrf_token="right")
    found, headers = await answer(sessions, opened(sessions) | changes, method=method)
    assert found == status
    assert "content-security-policy" in headers


async def test_the_link_itself_needs_no_session() -> None:
    sessions = Sessions(PORT)
    assert (await answer(sessions, {"host": HOST}, path="/open"))[0] == 200
    assert (await answer(sessions, {"host": "evil.example"}, path="/open"))[0] == 421
