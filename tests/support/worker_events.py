"""Events of job a on two nodes, in short form, and the start of its history."""

from dataclasses import replace
from typing import Any

from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import PlacedJob
from elasticflow.shared.state.job import Job
from testbed.histories import NOW_S, History, gpus, pool, spec


def admitted(job_id: str = "a", **changes: Any) -> events.JobAdmitted:
    values = {
        "tenant": "lab",
        "spec": spec(),
        "deadline_s": NOW_S + 100.0,
        "gpu_seconds": 50.0,
        "at_s": NOW_S,
    }
    values["minimum_satisfactory_share"] = ()
    return events.JobAdmitted(job_id=job_id, **(values | changes))


def profile_requested(job_id: str = "a", at_s: float = NOW_S) -> events.ProfileRequested:
    return events.ProfileRequested(job_id=job_id, tenant="lab", spec=spec(), deadline_s=NOW_S + 100.0, at_s=at_s)


def placed(
    generation: int, *names: str, job_id: str = "a", virtual_nodes_by_rank: tuple[int, ...] = ()
) -> events.PlacementDecided:
    one = PlacedJob(
        job_id=job_id, generation=generation, gpus=gpus(*names), virtual_nodes_by_rank=virtual_nodes_by_rank
    )
    return events.PlacementDecided(placements=(one,), at_s=NOW_S + generation)


def crashed(generation: int, *, node: str = "node-0", rank: int = 0) -> events.WorkerCrashed:
    return events.WorkerCrashed(
        job_id="a", generation=generation, node_id=node, rank=rank, explanation="signal 9", at_s=NOW_S
    )


def stopped(generation: int, node: str, iteration: int | None = None) -> events.WorkersStopped:
    return events.WorkersStopped(job_id="a", generation=generation, node_id=node, iteration=iteration, at_s=NOW_S)


def progressed(generation: int, iteration: int, *, checkpoint: int = 0, at_s: float = 5.0) -> events.JobProgressed:
    return events.JobProgressed(
        job_id="a",
        generation=generation,
        iteration=iteration,
        iterations_per_s=2.0,
        checkpoint_iteration=checkpoint,
        metrics={"loss": 1.0 / iteration},
        at_s=NOW_S + at_s,
    )


def finished(generation: int) -> events.JobFinished:
    return events.JobFinished(
        job_id="a", generation=generation, iteration=100, condition="max_iterations", at_s=NOW_S + 50.0
    )


def lost(node: str = "node-0", incarnation: str = "first-0") -> events.NodeLost:
    return events.NodeLost(node_id=node, incarnation=incarnation, reason="silent", at_s=NOW_S + 9.0)


def joined(incarnation: str, node: str = "node-0", num_gpus: int = 4, gpu_type: str = "") -> events.NodeJoined:
    return events.NodeJoined(
        node_id=node,
        incarnation=incarnation,
        num_gpus=num_gpus,
        device="cpu",
        gpu_type=gpu_type,
        at_s=NOW_S + 10.0,
    )


def running() -> History:
    """Job a trains in generation 1, on both nodes."""
    return pool(4, 4).then(admitted(), placed(1, "node-0:0", "node-1:0")).started("a", at_s=NOW_S + 2.0)


def job(history: History, job_id: str = "a") -> Job:
    found = history.state.job(job_id)
    assert found is not None
    return found


def rejected(**changes: Any) -> events.JobRejected:
    values = {"job_id": "a", "tenant": "lab", "spec": spec(), "reason": "deadline", "explanation": "no", "at_s": NOW_S}
    return events.JobRejected(**(values | changes))


def throughput(of: Job, rate: float, at_s: float, **changes: Any) -> events.ThroughputMeasured:
    """The throughput of a job's profiling run on the GPUs that it has."""
    assert of.spec is not None
    event = measured(of.spec.measured_key, len(of.gpus), rate, job_id=of.job_id, generation=of.generation, at_s=at_s)
    return replace(event, **changes)


def measured(profile_key: str, num_gpus: int, rate: float, **changes: Any) -> events.ThroughputMeasured:
    """A speed that the profiling run of a job has measured."""
    event = events.ThroughputMeasured(
        profile_key=profile_key,
        num_gpus=num_gpus,
        iterations_per_s=rate,
        job_id="a",
        generation=1,
        source="profile",
        at_s=NOW_S,
    )
    return replace(event, **changes)
