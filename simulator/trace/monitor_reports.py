"""Reports of progress, and corrections of curves, as the monitor of a live pool decides on them.

Between reports planners assume progress, as in a live pool. The reported speed is the true one at once; a live monitor
takes a running mean.
"""

from collections.abc import Callable

from elasticflow.services.monitor import model
from elasticflow.services.monitor.progress import LONGEST_REPORT_S, REPORT_EVERY_S, REPORTED_PART, corrections
from elasticflow.shared.messages.events import JobProgressed, ThroughputMeasured, WorkerReport
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.engine.virtual_time import Engine
from elasticflow.simulator.trace import simulated_events
from elasticflow.simulator.trace.cluster_state import ClusterState, Training


class MonitorReports:
    """fold: records an event; soon: makes the policies decide; pool: the folded ledger."""

    def __init__(
        self,
        engine: Engine,
        cluster_state: ClusterState,
        *,
        fold: Callable[[JobProgressed | ThroughputMeasured], None],
        soon: Callable[[], None],
        pool: Callable[[], PoolState],
    ) -> None:
        self._engine, self._cluster_state = engine, cluster_state
        self._fold, self._soon, self._pool = fold, soon, pool
        self._progress: Map[str, model.Progress] = Map()  # newest, by job

    def begin(self, training: Training) -> None:
        """The job has started on its GPUs."""
        self._report_after(REPORT_EVERY_S, training)

    def report(self) -> None:
        """Nothing beside the reports that are due."""

    def _report_after(self, wait_s: float, training: Training) -> None:
        self._engine.after(wait_s, lambda: self._report(training))

    def _report(self, training: Training) -> None:
        job_id, now_s = training.job.job_id, self._engine.now_s
        if not self._cluster_state.is_present(training):
            return
        reported = simulated_events.progressed(training, now_s, measured=True)
        self._fold(reported)
        self._progress = self._progress.set(job_id, _progress(reported, training.starts_s))
        state = model.MonitorState(pool=self._pool(), progress=self._progress)
        for correction in corrections(state, state.pool.live_jobs[job_id], self._progress[job_id], now_s):
            self._fold(correction)
        self._soon()
        wait_s = min(max(REPORTED_PART * (now_s - training.starts_s), REPORT_EVERY_S), LONGEST_REPORT_S)
        self._report_after(wait_s, training)


def _progress(reported: JobProgressed, since_s: float) -> model.Progress:
    report = WorkerReport(
        job_id=reported.job_id,
        generation=reported.generation,
        rank=0,
        iteration=reported.iteration,
        iterations_per_s=reported.iterations_per_s,
    )
    return model.Progress(
        generation=reported.generation,
        since_s=since_s,
        report=report,
        at_s=reported.at_s,
        moved_at_s=reported.at_s,
        mean_iterations_per_s=reported.iterations_per_s,
    )
