"""What a browser is told of a command that it sends wrongly: no command is sent then."""

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette

from elasticflow.shared.messages.events import JobCancelled
from elasticflow.web.command_routes import WRITING
from elasticflow.web.read_routes import LIVE, Page
from testbed.histories import NOW_S, pool
from tests.support.worker_events import admitted

JOB = "a"


class FakeClient:
    """Takes each command. sent: the names of the jobs."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def cancel(self, job_id: str, *, reason: str) -> JobCancelled:
        self.sent.append(job_id)
        return JobCancelled(job_id=job_id, reason=reason, at_s=NOW_S)

    async def amend(self, job_id: str, **_: Any) -> JobCancelled:
        return await self.cancel(job_id, reason="")


async def post(client: FakeClient, path: str, *parts: bytes, operator: bool = True) -> tuple[int, str]:
    """Status and text."""
    source: Any = SimpleNamespace(history=SimpleNamespace(state=pool(1).then(admitted(JOB)).state))
    connected: Any = client
    app = Starlette(routes=WRITING)
    app.state.page = Page(sources={LIVE: source}, client=connected, operator=operator)
    sent: list[Any] = []
    received = [{"type": "http.request", "body": part, "more_body": True} for part in parts]

    async def receive() -> Any:
        return received.pop(0) if received else {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": [], "app": app}
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]).decode()


async def test_a_command_is_sent_and_answered() -> None:
    client = FakeClient()
    status, text = await post(client, f"/api/jobs/{JOB}/cancel", b"{", b"}")
    assert (status, client.sent) == (200, [JOB])
    assert '"accepted":true' in text.replace(" ", "")


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"[" * 4_000, 400, "the request is not JSON"),
        (b'{"a":' * 800, 400, "the request is not JSON"),
        (b"", 400, "the request is not JSON"),
        (b"\xff\xfe", 400, "the request is not JSON"),
        (b"[]", 400, "the request must be a JSON object"),
        (b'{"a": "' + b"x" * 4_096 + b'"}', 413, "the request is too large"),
        (b'{"deadline_in_s": "soon"}', 400, "deadline_in_s must be a positive number"),
        (b'{"deadline_in_s": NaN}', 400, "deadline_in_s must be a positive number"),
        (b'{"deadline_in_s": 1e999}', 400, "deadline_in_s must be a positive number"),
        (b'{"max_iterations": ' + b"9" * 4_000 + b"}", 400, "max_iterations must be a positive number"),
        (b'{"max_iterations": true}', 400, "max_iterations must be a positive number"),
    ],
    ids=lambda value: repr(value[:20]) if isinstance(value, bytes) else "",
)
async def test_a_request_that_makes_no_sense_is_refused_in_words(body: bytes, status: int, said: str) -> None:
    client = FakeClient()
    found, text = await post(client, f"/api/jobs/{JOB}/amend", body[:7], body[7:])
    assert (found, client.sent) == (status, [])
    assert said in text


@pytest.mark.parametrize(
    ("path", "operator", "status"),
    [
        (f"/api/jobs/{JOB}/cancel", False, 403),
        (f"/api/jobs/{JOB}/delete", True, 404),
        ("/api/jobs/none/cancel", True, 404),
    ],
)
async def test_a_command_that_does_not_exist_or_is_not_allowed_is_not_sent(
    path: str, operator: bool, status: int
) -> None:
    client = FakeClient()
    assert (await post(client, path, b"{}", operator=operator))[0] == status
    assert client.sent == []
