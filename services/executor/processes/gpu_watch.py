"""Watches the GPUs of this node through NVML: for metrics, the heartbeat and the ledger.

GPUs that should compute nothing count as slow; of jobs that leave their GPUs idle, the pool's policy says what becomes.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from elasticflow.services.executor.decisions.local_events_and_actions import (
    GpusJudged,
    LocalEvent,
    WorkerId,
    WorkerReported,
)
from elasticflow.shared.messages.events.nodes import GpuReport
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.worker_protocol.from_worker import Failed, Warned
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.process.gpu_readings import GpuReading
from elasticflow.shared.runtime.process.metrics import Metrics

EVERY_S = 5.0
JUDGED_EVERY_S = 60.0  # also without news: a GPU counts as slow for a limited time
_BUSY_FROM = 0.02  # of the time; a display or a tool may use as much


class Reader(Protocol):
    """In production `gpu_readings.GpuReader`. Blocking."""

    def open(self) -> bool: ...
    def read(self) -> dict[int, GpuReading]: ...
    def close(self) -> None: ...


class GpuGauges:
    """The metrics of a node's GPUs, each by the GPU's number there."""

    def __init__(self, metrics: Metrics) -> None:
        def gauge(name: str, meaning: str) -> Any:
            return metrics.gauge_by(f"ef_gpu_{name}", meaning, "gpu")

        self._values = {
            "utilization": gauge("utilization_ratio", "Part of the last second in which a kernel ran"),
            "memory_used_bytes": gauge("memory_used_bytes", "Used memory of the GPU"),
            "temperature_c": gauge("temperature_celsius", "Temperature of the GPU"),
            "power_w": gauge("power_watts", "Power that the GPU takes"),
            "corrected_ecc_errors": gauge("corrected_ecc_errors", "Corrected errors of memory since the driver began"),
            "uncorrected_ecc_errors": gauge("uncorrected_ecc_errors", "Uncorrected errors of memory since then"),
            "remapped_rows": gauge("remapped_rows", "Rows of memory that were replaced"),
        }
        self._throttled = gauge("throttled", "1 while heat, power or the hardware lower the clocks")
        self._failing = gauge("failing", "1 while its driver asks for a reset or a reboot")
        self._xids = metrics.counter_by("ef_gpu_xid_errors_total", "Critical errors (Xid) of the GPU", "gpu")

    def set(self, index: int, reading: GpuReading) -> None:
        """What is unknown has no series."""
        for name, gauge in self._values.items():
            if (value := getattr(reading, name)) is not None:
                gauge.set(str(index), float(value))
        if reading.throttled_by is not None:
            self._throttled.set(str(index), float(bool(reading.throttled_by)))
        self._failing.set(str(index), float(bool(reading.problem)))
        if reading.xids:
            self._xids.add(str(index), len(reading.xids))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWorker:
    """A worker of this node that trains now."""

    worker: WorkerId
    gpu_index: int


class GpuWatch:
    """training: the workers that train here now. note: receives local events. config: of the pool now."""

    def __init__(
        self,
        reader: Reader,
        node_id: str,
        *,
        gauges: GpuGauges,
        training: Callable[[], Iterable[TrainingWorker]],
        note: Callable[[LocalEvent], None],
        config: Callable[[], PoolConfig],
        clock: Clock,
        log: Any,
    ) -> None:
        self._reader, self._node_id, self._gauges = reader, node_id, gauges
        self._training, self._note, self._config = training, note, config
        self._clock, self._log = clock, log
        self.reports: tuple[GpuReport, ...] = ()  # for the heartbeat
        self._problems: dict[int, str] = {}
        self._judged_at_s = 0.0
        self._busy_at_s: dict[tuple[str, int], float] = {}  # by job and generation
        self._told = set[tuple[str, int]]()

    async def run(self) -> None:
        """Watch until cancelled. Returns at once where NVML knows none of the GPUs."""
        if not await asyncio.to_thread(self._reader.open):
            return
        try:
            while True:
                self.take(await asyncio.to_thread(self._reader.read), self._clock.now_s())
                await asyncio.sleep(EVERY_S)
        finally:
            self._reader.close()

    def take(self, readings: dict[int, GpuReading], now_s: float) -> None:
        """What the readings of this moment say."""
        for index, reading in readings.items():
            self._gauges.set(index, reading)
            if reading.xids:
                self._log.warning("GpuErrors", gpu_index=index, xids=reading.xids)
        self.reports = tuple(_report(index, reading) for index, reading in sorted(readings.items()))
        self._judge({index: reading.problem for index, reading in readings.items() if reading.problem}, now_s)
        self._look_for_idle(readings, now_s)

    def _judge(self, problems: dict[int, str], now_s: float) -> None:
        is_due = bool(problems) and now_s - self._judged_at_s > JUDGED_EVERY_S
        if problems == self._problems and not is_due:
            return
        if problems != self._problems:
            self._log.warning("GpusJudged", failing=problems)
        self._problems, self._judged_at_s = problems, now_s
        self._note(GpusJudged(failing=tuple(sorted(problems.items())), at_s=now_s))

    def _look_for_idle(self, readings: dict[int, GpuReading], now_s: float) -> None:
        config = self._config()
        workers: dict[tuple[str, int], list[TrainingWorker]] = {}
        for each in self._training():
            workers.setdefault((each.worker.job_id, each.worker.generation), []).append(each)
        self._busy_at_s = {key: at_s for key, at_s in self._busy_at_s.items() if key in workers}
        self._told &= workers.keys()
        for key, of_job in workers.items():
            known = [readings.get(each.gpu_index) for each in of_job]
            is_idle = all(each and each.utilization is not None and each.utilization < _BUSY_FROM for each in known)
            if not is_idle or key not in self._busy_at_s:
                self._busy_at_s[key] = now_s
            idle_s = now_s - self._busy_at_s[key]
            if idle_s >= config.idle_gpu_s and key not in self._told and config.idle_gpu_policy != "off":
                self._told.add(key)
                self._tell_idle(min(of_job, key=lambda each: each.worker.rank).worker, config)

    def _tell_idle(self, worker: WorkerId, config: PoolConfig) -> None:
        what = f"its GPUs on {self._node_id} have been idle for {config.idle_gpu_s:.0f} s while it trains"
        self._log.warning("GpusIdle", **worker._asdict(), policy=config.idle_gpu_policy)
        if config.idle_gpu_policy == "end":
            why = "idle_gpu_policy of the pool ends such jobs; `eflow logs` shows what it did"
            self._note(WorkerReported(worker=worker, message=Failed(error=f"{what}; {why}")))
        else:
            why = f"`eflow stack {worker.job_id}` shows where it is, and whether it waits for its data"
            self._note(WorkerReported(worker=worker, message=Warned(warning=f"{what}: {why}", is_own=True)))


def _report(index: int, reading: GpuReading) -> GpuReport:
    return GpuReport(
        gpu_index=index,
        utilization=reading.utilization,
        memory_used_bytes=reading.memory_used_bytes,
        temperature_c=None if reading.temperature_c is None else float(reading.temperature_c),
        power_w=reading.power_w,
        throttled_by=reading.throttled_by or (),
        problem=reading.problem,
    )
