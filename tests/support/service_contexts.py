"""What a part of a service acts on, in short form."""

from typing import Any

from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.process.clock import Clock, SystemClock
from elasticflow.shared.runtime.process.logs import get_log
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.service.service_context import ServiceContext


def service_context(
    bus: Bus,
    pool: str,
    clock: Clock | None = None,
    *,
    instance: str = "one",
    log: Any = None,
    metrics: Metrics | None = None,
) -> ServiceContext:
    return ServiceContext(
        bus=bus,
        pool=pool,
        clock=clock or SystemClock(),
        instance=instance,
        log=log or get_log("test"),
        metrics=metrics or Metrics("test", pool),
    )
