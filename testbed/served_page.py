"""`eflow ui` as a process, and a client that has opened its link."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from elasticflow.web.server import CSRF_HEADER

PATIENCE_S = 60.0


@contextmanager
def served_page(*arguments: str, environment: dict[str, str] | None = None) -> Iterator[str]:
    """The link that `eflow ui` prints. The process ends with the body."""
    command = [sys.executable, "-m", "elasticflow", "ui", *arguments]
    root = str(Path(__file__).parents[1])
    paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    process = subprocess.Popen(
        command,
        env={**os.environ, **(environment or {}), "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found is not None, line
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
        process.stdout.close()


class PageClient:
    """A browser without a screen: it has the cookie, and sends what scripts of the page send."""

    def __init__(self, link: str) -> None:
        self._link = urlsplit(link)
        self.host = self._link.netloc
        opened = self._send("GET", f"{self._link.path}?{self._link.query}", {})
        self._cookie = (opened.getheader("set-cookie") or "").partition(";")[0]
        opened.read()
        self.session = self.get("/api/session")[1]

    def get(self, path: str) -> tuple[int, Any]:
        """Status, and the JSON or the text."""
        return _read(self._send("GET", path, {"cookie": self._cookie}))

    def post(self, path: str, body: bytes | Iterator[bytes] | dict[str, Any]) -> tuple[int, Any]:
        """body: an iterator is sent in chunks, without naming its length."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        token = self.session["csrf_token"]
        headers = {"cookie": self._cookie, "origin": f"http://{self.host}", CSRF_HEADER: token}
        return _read(self._send("POST", path, headers, data))

    def stream(self, path: str = "/api/stream", *, last_event_id: int = 0) -> Iterator[tuple[str, Any]]:
        """Server-sent events, without end: name and value."""
        headers = {"cookie": self._cookie, "last-event-id": str(last_event_id)}
        response = self._send("GET", path, headers)
        assert response.status == 200
        with response:
            name = ""
            for line in iter(response.readline, b""):
                field, _, value = line.decode().rstrip("\n").partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, json.loads(value)

    def stalled(self) -> socket.socket:
        """The changes of the pool, asked for by a viewer that never reads. The caller closes it."""
        host, port = self.host.split(":")
        viewer = socket.socket()
        viewer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        viewer.connect((host, int(port)))
        viewer.sendall(f"GET /api/stream HTTP/1.1\r\nhost: {self.host}\r\ncookie: {self._cookie}\r\n\r\n".encode())
        return viewer

    def _send(
        self, method: str, path: str, headers: dict[str, str], body: bytes | Iterator[bytes] | None = None
    ) -> HTTPResponse:
        connection = HTTPConnection(self.host, timeout=PATIENCE_S)
        connection.request(method, path, body, headers | {"connection": "close"})  # closed with the response
        return connection.getresponse()


async def in_thread(iterator: Iterator[tuple[str, Any]], wanted: str) -> Any:
    """The next value of this name."""

    def next_value() -> Any:
        return next(value for name, value in iterator if name == wanted)

    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.to_thread(next_value)


def _read(response: HTTPResponse) -> tuple[int, Any]:
    with response:
        data = response.read()
    is_json = (response.getheader("content-type") or "").startswith("application/json")
    return response.status, json.loads(data) if is_json else data.decode()
