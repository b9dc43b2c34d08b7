"""Events of the simulated cluster, as the live system records them.

Live events count whole iterations. Here they carry fractions: an exact plan must not lose the step in flight at every
resize. No codec is in between: it would reject a fraction.
"""

from collections.abc import Callable
from typing import cast

from elasticflow.services.monitor import model
from elasticflow.services.monitor.progress import LONGEST_REPORT_S, REPORT_EVERY_S, REPORTED_PART, corrections
from elasticflow.shared.messages.events import (
    GenerationStarted,
    JobFinished,
    JobProgressed,
    NodeJoined,
    NodeLost,
    PlanDecided,
    PoolConfigured,
    ThroughputMeasured,
    WorkerReport,
    WorkersStopped,
)
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.job import StoppingWorkers
from elasticflow.shared.state.pool import NodeState, PoolState
from elasticflow.simulator.replay.recorded_ledger import OPERATOR
from elasticflow.simulator.trace.cluster_state import ClusterState, Training
from elasticflow.simulator.virtual_time import Engine


def pool_configured(config: PoolConfig, based_on: int, at_s: float) -> PlanDecided:
    """The operator's decision, the first one."""
    event = PoolConfigured(config=config, at_s=at_s)
    return PlanDecided(service=OPERATOR, based_on=based_on, now_s=at_s, events=(event,))


def node_joined(
    node_id: str,
    num_gpus: int,
    known: NodeState | None,
    at_s: float,
    gpu_type: str = "",
    until_s: float | None = None,
) -> NodeJoined:
    """known: its state before it was lost; a node that rejoins has a new incarnation."""
    incarnation = int(known.incarnation) + 1 if known is not None else 0
    return NodeJoined(
        node_id=node_id,
        incarnation=str(incarnation),
        num_gpus=num_gpus,
        device="cuda",
        gpu_type=gpu_type,
        until_s=until_s,
        at_s=at_s,
    )


def node_left(node: NodeState, at_s: float) -> NodeLost:
    """The loss of a node at its announced end."""
    return NodeLost(node_id=node.node_id, incarnation=node.incarnation, reason="left", at_s=at_s)


def node_lost(node: NodeState, at_s: float) -> NodeLost:
    return NodeLost(node_id=node.node_id, incarnation=node.incarnation, reason="silent", at_s=at_s)


def generation_started(training: Training, at_s: float) -> GenerationStarted:
    return GenerationStarted(
        job_id=training.job.job_id,
        generation=training.generation,
        num_gpus=len(training.gpus),
        iteration=_exactly(training.progress.iteration),
        at_s=at_s,
    )


def progressed(training: Training, at_s: float, *, measured: bool = False) -> JobProgressed:
    """All progress counts as checkpointed. measured: the speed is reported too."""
    iteration, running = _exactly(training.iteration_at(at_s)), training.at(at_s)
    return JobProgressed(
        job_id=training.job.job_id,
        generation=running.generation,
        iteration=iteration,
        iterations_per_s=running.progress.iterations_per_s if measured else None,
        checkpoint_iteration=iteration,
        at_s=at_s,
    )


def workers_stopped(job_id: str, stopping: StoppingWorkers, iteration: float, at_s: float) -> WorkersStopped:
    """iteration: of the job, fractions included."""
    return WorkersStopped(
        job_id=job_id,
        generation=stopping.generation,
        node_id=stopping.node_id,
        iteration=_exactly(iteration),
        at_s=at_s,
    )


def job_finished(training: Training, at_s: float) -> JobFinished:
    return JobFinished(
        job_id=training.job.job_id,
        generation=training.generation,
        iteration=training.job.num_iterations,
        condition="max_iterations",
        at_s=at_s,
    )


def _exactly(iteration: float) -> int:
    return cast(int, iteration)


# --- monitor reports ----------------------------------------------------------------------------------
# Reports of progress, and corrections of curves, as the monitor of a live pool decides on them.
#
# Between reports planners assume progress, as in a live pool. The reported speed is the true one at once; a live
# monitor takes a running mean.


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
        reported = progressed(training, now_s, measured=True)
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
