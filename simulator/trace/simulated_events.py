"""Events of the simulated cluster, as the live system records them.

Live events count whole iterations. Here they carry fractions: an exact plan must not lose the step in flight at every
resize. No codec is in between: it would reject a fraction.
"""

from typing import cast

from elasticflow.shared.messages.events import (
    GenerationStarted,
    JobFinished,
    JobProgressed,
    NodeJoined,
    NodeLost,
    PlanDecided,
    PoolConfigured,
    WorkersStopped,
)
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.state.job import StoppingWorkers
from elasticflow.shared.state.pool import NodeState
from elasticflow.simulator.replay.recorded_ledger import OPERATOR
from elasticflow.simulator.trace.cluster_state import Training


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
