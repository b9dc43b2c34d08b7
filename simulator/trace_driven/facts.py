"""What happens in the world, as the live system would tell it: one fact each.

Live, facts count whole iterations. Here they say the truth, with its fraction: a plan that is exact must not lose
the step in flight at every change of GPUs. No codec is in between that would mind.
"""

from typing import cast

from shared.messages.cluster import PoolConfig
from shared.messages.events import (
    GenerationStarted,
    JobFinished,
    JobProgressed,
    NodeJoined,
    NodeLost,
    PlanDecided,
    PoolConfigured,
    WorkersStopped,
)
from shared.messages.job_state import StoppingWorkers
from shared.messages.node_state import NodeState
from simulator.replay import OPERATOR
from simulator.trace_driven.world import Training


def pool_configured(config: PoolConfig, based_on: int, at_s: float) -> PlanDecided:
    """The operator's decision, before all others."""
    event = PoolConfigured(config=config, at_s=at_s)
    return PlanDecided(service=OPERATOR, based_on=based_on, now_s=at_s, events=(event,))


def node_joined(node_id: str, num_gpus: int, known: NodeState | None, at_s: float) -> NodeJoined:
    """known: as it was before it went down; a node that comes back is another incarnation."""
    incarnation = int(known.incarnation) + 1 if known is not None else 0
    return NodeJoined(
        node_id=node_id, incarnation=str(incarnation), num_gpus=num_gpus, device="cuda", at_s=at_s
    )


def node_lost(node: NodeState, at_s: float) -> NodeLost:
    return NodeLost(node_id=node.node_id, incarnation=node.incarnation, reason="silent", at_s=at_s)


def generation_started(training: Training, at_s: float) -> GenerationStarted:
    return GenerationStarted(
        job_id=training.job.job_id,
        generation=training.generation,
        num_gpus=len(training.gpus),
        iteration=_exactly(training.iteration),
        at_s=at_s,
    )


def progressed(training: Training, at_s: float, *, measured: bool = False) -> JobProgressed:
    """All of it is safe: nothing is lost with the GPUs. measured: its speed is told too."""
    iteration = _exactly(training.iteration_at(at_s))
    return JobProgressed(
        job_id=training.job.job_id,
        generation=training.generation,
        iteration=iteration,
        iterations_per_s=training.rate if measured else None,
        checkpoint_iteration=iteration,
        at_s=at_s,
    )


def workers_stopped(job_id: str, gone: StoppingWorkers, iteration: float, at_s: float) -> WorkersStopped:
    """iteration: how far the job is."""
    return WorkersStopped(
        job_id=job_id,
        generation=gone.generation,
        node_id=gone.node_id,
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
