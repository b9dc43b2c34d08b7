"""A metadata service on loopback, as clouds have one: a real HTTP server whose answers a test changes."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

TOKEN_PATH = "/latest/api/token"
INSTANCE_ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"

Cloud = Literal["aws", "gcp", "azure"]
QUIET: dict[Cloud, dict[str, str]] = {  # of a machine that nothing ends
    "aws": {},
    "gcp": {PREEMPTED: "FALSE", MAINTENANCE: "NONE"},
    "azure": {NAME: "vm-0", EVENTS: json.dumps({"DocumentIncarnation": 1, "Events": []})},
}


class FakeMetadata(ThreadingHTTPServer):
    """items: text by path. Each cloud refuses a request without its own header, as the real one does."""

    daemon_threads = True

    def __init__(self, cloud: Cloud) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.cloud = cloud
        self.items = dict(QUIET[cloud])
        self.token = "token-1"
        self.num_tokens = 0
        self.is_down = False
        self.num_questions = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def expire_token(self) -> None:
        self.token = f"token-{self.num_tokens + 1}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeMetadata  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_PUT(self) -> None:
        if self.server.cloud != "aws" or self.path != TOKEN_PATH or self.server.is_down:
            return self._answer(405 if not self.server.is_down else 503)
        if "X-aws-ec2-metadata-token-ttl-seconds" not in self.headers:
            return self._answer(400)
        self.server.num_tokens += 1
        return self._answer(200, self.server.token)

    def do_GET(self) -> None:
        self.server.num_questions += 1
        if self.server.is_down:
            return self._answer(503)
        if (status := self._refused()) is not None:
            return self._answer(status)
        text = self.server.items.get(self.path)
        return self._answer(404) if text is None else self._answer(200, text)

    def _refused(self) -> int | None:
        match self.server.cloud:
            case "aws":
                return None if self.headers.get("X-aws-ec2-metadata-token") == self.server.token else 401
            case "gcp":
                return None if self.headers.get("Metadata-Flavor") == "Google" else 403
            case "azure":
                return None if self.headers.get("Metadata") == "true" else 400

    def _answer(self, status: int, text: str = "") -> None:
        self.send_response(status)
        if self.server.cloud == "gcp":
            self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: pytest shows what matters."""


@contextmanager
def metadata_service(cloud: Cloud) -> Iterator[FakeMetadata]:
    with FakeMetadata(cloud) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join()
