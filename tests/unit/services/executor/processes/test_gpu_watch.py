"""GPUs that fail, and jobs that leave their GPUs idle, as the executor learns of them from NVML."""

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import generate_latest

from elasticflow.services.executor.decisions.local_events_and_actions import GpusJudged, WorkerId, WorkerReported
from elasticflow.services.executor.processes.gpu_watch import JUDGED_EVERY_S, GpuGauges, GpuWatch, TrainingWorker
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.worker_protocol.from_worker import Failed, Warned
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.gpu_readings import GpuReader
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from testbed.fake_nvml import FakeGpu, FakeNvml

IDLE_S = 600.0


class Watched:
    """A node of two GPUs, and what its executor notes."""

    def __init__(self, **config: Any) -> None:
        self.gpus = FakeGpu(uuid="GPU-0"), FakeGpu(uuid="GPU-1")
        self.config = replace(PoolConfig(idle_gpu_s=IDLE_S), **config)
        self.training: list[TrainingWorker] = []
        self.noted: list[Any] = []
        self.metrics = Metrics("executor", "pool")
        self.reader = GpuReader(("GPU-0", "GPU-1"), FakeNvml(*self.gpus))
        assert self.reader.open()
        self.watch = GpuWatch(
            self.reader,
            "node-1",
            gauges=GpuGauges(self.metrics),
            training=lambda: self.training,
            note=self.noted.append,
            config=lambda: self.config,
            clock=SystemClock(),
            log=SilentLog(),
        )

    def trains(self, *gpus: int, generation: int = 1) -> None:
        self.training = [
            TrainingWorker(worker=WorkerId("digits", generation, rank), gpu_index=gpu) for rank, gpu in enumerate(gpus)
        ]

    def at(self, now_s: float) -> list[Any]:
        """What is noted then."""
        self.noted.clear()
        self.watch.take(self.reader.read(), now_s)
        return [*self.noted]


def test_a_failing_gpu_is_told_at_once_again_while_it_lasts_and_when_it_is_over() -> None:
    watched = Watched()
    assert watched.at(0.0) == []
    watched.gpus[1].action = 1
    failing = ((1, "needs a reset"),)
    assert watched.at(5.0) == [GpusJudged(failing=failing, at_s=5.0)]
    assert watched.at(10.0) == []
    later_s = 5.0 + JUDGED_EVERY_S + 5.0
    assert watched.at(later_s) == [GpusJudged(failing=failing, at_s=later_s)]
    watched.gpus[1].action = 0
    assert watched.at(later_s + 5.0) == [GpusJudged(failing=(), at_s=later_s + 5.0)]


def test_a_job_whose_gpus_idle_is_warned_once_in_a_generation() -> None:
    watched = Watched()
    watched.trains(0, 1)
    assert watched.at(0.0) == []
    assert watched.at(IDLE_S - 1.0) == []
    (noted,) = watched.at(IDLE_S)
    assert isinstance(noted, WorkerReported)
    assert noted.worker == WorkerId("digits", 1, 0)
    assert isinstance(noted.message, Warned)
    assert "GPUs on node-1 have been idle for 600 s" in noted.message.warning
    assert watched.at(3 * IDLE_S) == []
    watched.trains(0, generation=2)
    assert watched.at(4 * IDLE_S) == []
    assert len(watched.at(5 * IDLE_S)) == 1


def test_a_job_that_uses_one_of_its_gpus_now_and_then_is_not_idle() -> None:
    watched = Watched()
    watched.trains(0, 1)
    for step in range(20):
        watched.gpus[1].utilization = 90 if step % 3 == 0 else 0
        assert watched.at(step * IDLE_S / 4) == []


@pytest.mark.parametrize("change", ["off", "unknown", "ended"])
def test_nobody_is_warned_without_a_policy_a_value_or_a_job(change: str) -> None:
    watched = Watched(**({"idle_gpu_policy": "off"} if change == "off" else {}))
    watched.trains(0)
    if change == "unknown":
        watched.gpus[0].unsupported = frozenset({"utilization"})
    assert watched.at(0.0) == []
    if change == "ended":
        watched.training = []
        assert watched.at(IDLE_S / 2) == []
        watched.trains(0)
    assert watched.at(IDLE_S) == []


def test_the_policy_may_end_the_job_with_the_reason() -> None:
    watched = Watched(idle_gpu_policy="end")
    watched.trains(0)
    assert watched.at(0.0) == []
    (noted,) = watched.at(IDLE_S)
    assert isinstance(noted.message, Failed)
    assert "idle_gpu_policy of the pool ends such jobs" in noted.message.error


def test_metrics_and_heartbeat_have_what_is_known() -> None:
    watched = Watched()
    watched.gpus[0].utilization, watched.gpus[0].xids = 42, [79]
    watched.gpus[1].unsupported = frozenset({"utilization"})
    watched.gpus[1].action = 2
    watched.at(0.0)
    text = generate_latest(watched.metrics.registry).decode()
    assert 'ef_gpu_utilization_ratio{gpu="0",pool="pool",service="executor"} 0.42' in text
    assert 'ef_gpu_utilization_ratio{gpu="1"' not in text
    assert 'ef_gpu_xid_errors_total{gpu="0",pool="pool",service="executor"} 1.0' in text
    assert 'ef_gpu_failing{gpu="1",pool="pool",service="executor"} 1.0' in text
    first, second = watched.watch.reports
    assert (first.utilization, first.temperature_c, first.problem) == (0.42, 40.0, "")
    assert (second.utilization, second.problem) == (None, "needs a reboot of its machine")
