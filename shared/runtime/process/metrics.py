"""Metrics of a process, and the small HTTP server that shows them."""

import asyncio
import contextlib
import http.client
import socket
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, NamedTuple

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

# --- Small pages over HTTP, and a look at one: all that a service shows of itself ----------------------
# The standard library serves them, from threads of its own; what a page says is made in the event loop, as all else
# is that looks at a service's state. (aiohttp costs each process of a pool a tenth of a second of its start.)

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
    """Where a client opens too many connections, a new one closes the oldest: others are answered nevertheless."""

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


_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """The metrics of one service in one process; each Metrics has a registry of its own."""

    def __init__(self, service: str, pool: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._labels = {"service": service, "pool": pool}
        self.ledger_sequence = self.gauge("ef_ledger_sequence", "Last folded sequence of the ledger")
        self.decisions_total = self.counter("ef_decisions_total", "Decisions appended to the plan")
        self.conflicts_total = self.counter("ef_conflicts_total", "Decisions that lost the race for the plan")
        self.events_total = self.counter("ef_events_total", "Events appended to the ledger")
        self.commands_total = self.counter("ef_commands_total", "Commands of users that were decided on")
        self.refused_total = self.counter("ef_refused_messages_total", "Unreadable messages dead-lettered")
        self.housekeeping_failures = self.counter_by(
            "ef_housekeeping_failures_total", "Failures of work beside the decisions, which is begun again", "task"
        )
        self.decide_seconds = self.histogram("ef_decide_seconds", "Time of one decision")
        self.append_seconds = self.histogram("ef_append_seconds", "Time of one append to the ledger")
        self.clock_offset = self.gauge("ef_clock_offset_seconds", "Clock of the planner less that of NATS, at least")
        self.blocked = self.gauge_by("ef_decisions_blocked", "1 while the service takes no decisions", "reason")
        self.connected = self.gauge("ef_nats_connected", "1 while the connection to NATS stands")

    def counter(self, name: str, documentation: str) -> Counter:
        metric = Counter(name, documentation, tuple(self._labels), registry=self.registry)
        return metric.labels(**self._labels)

    def gauge(self, name: str, documentation: str) -> Gauge:
        metric = Gauge(name, documentation, tuple(self._labels), registry=self.registry)
        return metric.labels(**self._labels)

    def gauge_by(self, name: str, documentation: str, label_name: str) -> "GaugeBy":
        """A gauge with a label of its own besides service and pool."""
        gauge = Gauge(name, documentation, (*self._labels, label_name), registry=self.registry)
        return GaugeBy(gauge, tuple(self._labels.values()))

    def counter_by(self, name: str, documentation: str, label_name: str) -> "CounterBy":
        """A counter with a label of its own besides service and pool."""
        counter = Counter(name, documentation, (*self._labels, label_name), registry=self.registry)
        return CounterBy(counter, tuple(self._labels.values()))

    def histogram(self, name: str, documentation: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
        metric = Histogram(name, documentation, tuple(self._labels), registry=self.registry, buckets=buckets)
        return metric.labels(**self._labels)


class GaugeBy:
    """A gauge with one series for each value of its last label; service_and_pool: values of the labels before it."""

    def __init__(self, gauge: Gauge, service_and_pool: tuple[str, ...]) -> None:
        self._gauge, self._service_and_pool = gauge, service_and_pool

    def set(self, label: str, value: float) -> None:
        self._gauge.labels(*self._service_and_pool, label).set(value)

    def clear(self) -> None:
        """Forget every series: of what is not set again there is none."""
        self._gauge.clear()


class CounterBy:
    """A counter with one series for each value of its last label; service_and_pool: values of the labels before it."""

    def __init__(self, counter: Counter, service_and_pool: tuple[str, ...]) -> None:
        self._counter, self._service_and_pool = counter, service_and_pool

    def add(self, label: str, amount: float) -> None:
        self._counter.labels(*self._service_and_pool, label).inc(amount)


def serve_metrics(metrics: Metrics, health: Callable[[], str | None], *, host: str, port: int) -> HttpServer:
    """Serve both pages. health() is None when all is well, else the reason. Raises OSError."""

    def show_metrics() -> HttpResponse:
        return HttpResponse(generate_latest(metrics.registry), content_type=CONTENT_TYPE_LATEST)

    def show_health() -> HttpResponse:
        reason = health()
        if reason is None:
            return HttpResponse(b"ok\n")
        return HttpResponse(f"{reason}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE)

    return HttpServer({"/metrics": show_metrics, "/healthz": show_health}, host=host, port=port)
