"""A worker tells what users' code does in a start that lasts, and each of two time-outs has stacks of its own."""

from collections.abc import Iterator

import pytest

from elasticflow.services.executor.worker.process import telemetry
from elasticflow.services.executor.worker.process.telemetry import Telemetry
from elasticflow.services.executor.worker.process.users_process import PROCESS
from elasticflow.shared.messages.timeouts import FailureTimeouts
from tests.support.telemetry_reader import TelemetryReader


class Worker(TelemetryReader):
    def phase_at(self, now_s: float) -> str:
        """In a report that is made from then on."""
        self.now_s = now_s
        return self.next_alive().phase


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    yield Worker(monkeypatch)
    PROCESS.phase = ""


def test_a_phase_is_told_once_it_has_lasted_for_some_seconds_until_training_begins(worker: Worker) -> None:
    with Telemetry(worker) as reporting:  # type: ignore[arg-type]
        PROCESS.phase = "in init_model()"
        assert worker.phase_at(0.0) == ""
        assert worker.phase_at(4.9) == ""
        assert worker.phase_at(5.0) == "in init_model()"
        PROCESS.phase = "in init_dataset()"
        assert worker.phase_at(6.0) == ""
        assert worker.phase_at(11.0) == "in init_dataset()"
        reporting.training_began(0)
        assert worker.phase_at(30.0) == ""


def test_where_a_start_may_last_for_few_seconds_its_phase_is_told_sooner(worker: Worker) -> None:
    with Telemetry(worker, FailureTimeouts(stall_timeout_s=8.0)):  # type: ignore[arg-type]
        PROCESS.phase = "in init_model()"
        assert worker.phase_at(0.0) == ""
        assert worker.phase_at(1.0) == "in init_model()"


def test_stacks_are_written_after_half_of_the_time_that_a_start_and_then_a_step_may_last(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = list[float]()
    monkeypatch.setattr(telemetry, "_write_stacks", written.append)
    monkeypatch.setattr(telemetry, "places_of_threads", lambda: ())
    with Telemetry(worker, FailureTimeouts(stall_timeout_s=60.0, start_timeout_s=600.0)) as reporting:  # type: ignore[arg-type]
        for now_s in (31.0, 299.0, 301.0):
            worker.phase_at(now_s)
        assert written == [301.0]
        reporting.training_began(0)
        for now_s in (301.0 + 29.0, 301.0 + 31.0):
            worker.phase_at(now_s)
        assert written == [301.0, 31.0]
