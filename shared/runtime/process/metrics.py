"""Metrics of every service, in one file, units in the names; and the two pages that show them.

/metrics   Prometheus text
/healthz   200 while the service follows the ledger, 503 and the reason while it does not
"""

from collections.abc import Callable, Sequence
from http import HTTPStatus

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

from elasticflow.shared.runtime.process.http_server import HttpResponse, HttpServer

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
