"""Workers of the simulated cluster: they leave GPUs and take others as placements say, start, and finish their job."""

from collections.abc import Mapping

from elasticflow.shared.messages.events import PlacedJob, PlacementDecided
from elasticflow.simulator.engine.event_queue import Engine
from elasticflow.simulator.engine.policy_driver import NEVER_S, PolicyDriver
from elasticflow.simulator.trace import simulated_events
from elasticflow.simulator.trace.cluster_state import ClusterState
from elasticflow.simulator.trace.failures_and_speed_noise import ThroughputReports
from elasticflow.simulator.trace.monitor_reports import MonitorReports
from elasticflow.simulator.trace.result import JobLog
from elasticflow.simulator.trace.training import Training
from elasticflow.simulator.workload.workload import TraceJob


class SimulatedWorkers:
    """jobs: all of the workload, by id. reports: of the jobs that train. log: gets their ends."""

    def __init__(
        self,
        engine: Engine,
        driver: PolicyDriver,
        cluster_state: ClusterState,
        jobs: Mapping[str, TraceJob],
        reports: MonitorReports | ThroughputReports,
        log: JobLog,
    ) -> None:
        self._engine, self._driver, self._cluster_state = engine, driver, cluster_state
        self._jobs, self._reports, self._log = jobs, reports, log

    def carry_out(self, decision: PlacementDecided) -> None:
        """All jobs leave their GPUs before any job takes new ones; jobs that only leave some go first."""
        left: dict[str, Training | None] = {}
        for placed in decision.placements:
            left[placed.job_id] = self._cluster_state.release(placed.job_id, self._engine.now_s)
            self._report_stopped(placed.job_id)

        def takes(placed: PlacedJob) -> bool:
            before = left[placed.job_id]
            return before is None or not set(placed.gpus) <= set(before.gpus)

        for placed in sorted(decision.placements, key=takes):
            if placed.gpus:
                switches = self._driver.state.live_jobs[placed.job_id].previous_generation is not None
                self._occupy(placed, left[placed.job_id] if switches else None)

    def _occupy(self, placed: PlacedJob, before: Training | None) -> None:
        job, now_s = self._jobs[placed.job_id], self._engine.now_s
        training = self._cluster_state.occupy(
            job, placed.generation, placed.gpus, now_s, placed.virtual_nodes_by_rank, before
        )
        self._engine.at(training.starts_s, lambda: self._start(training))
        if training.done_at_s < NEVER_S:
            self._engine.at(training.done_at_s, lambda: self._finish(training))

    def _start(self, training: Training) -> None:
        """The stop ends, unless the job has left these GPUs."""
        if self._cluster_state.is_present(training):
            self._driver.fold(simulated_events.generation_started(training, self._engine.now_s))
            self._reports.begin(training)
            if self._driver.state.config.stop_free:  # workers that left, and changes that waited for the switch
                self._report_stopped(training.job.job_id)
                self._driver.soon()

    def _finish(self, training: Training) -> None:
        if not self._cluster_state.is_present(training):
            return
        job_id, now_s = training.job.job_id, self._engine.now_s
        self._log.finished_at_s[job_id] = now_s
        self._driver.fold(simulated_events.job_finished(training, now_s))
        self._report_stopped(job_id)
        self._cluster_state.finish(job_id, now_s)
        self._driver.soon()

    def _report_stopped(self, job_id: str) -> None:
        """Each node reports that the job's workers have stopped; otherwise the fold never forgets an ended job."""
        job, now_s = self._driver.state.job(job_id), self._engine.now_s
        iteration = self._cluster_state.iteration(job_id, now_s)
        for stopping in job.stopping if job is not None else ():
            self._driver.fold(simulated_events.workers_stopped(job_id, stopping, iteration, now_s))
