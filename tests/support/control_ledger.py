"""The ledger of a live run with one job, which trains with the function of the benchmark's control job."""

from collections.abc import Iterator

from benchmarks.simulator_fidelity.workload import CONTROL, Arrival, nominal_rates
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.events import (
    GenerationStarted,
    JobAdmitted,
    JobFinished,
    PlacedJob,
    PlacementDecided,
    PlanDecided,
    PlanEvent,
)
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.measurements import ResizeTimeline
from elasticflow.shared.state.policy import LedgerMessage

GPUS = (GpuId("node-0", 0), GpuId("node-0", 1))
RATE = nominal_rates(CONTROL)[1]
JOB = Arrival(job_id="a", model_name=CONTROL, at_s=0.0, num_iterations=round(20 * RATE), deadline_in_s=60.0)


def decided(service: str, at_s: float, *events: PlanEvent, commands: tuple[SubmitJob, ...] = ()) -> PlanDecided:
    return PlanDecided(service=service, based_on=0, now_s=at_s, commands=commands, events=events)


def placed(generation: int, at_s: float, num_gpus: int) -> PlanDecided:
    one = PlacedJob(job_id="a", generation=generation, gpus=GPUS[:num_gpus])
    return decided("placement", at_s, PlacementDecided(placements=(one,), at_s=at_s))


def ledger(speed: float = 1.0) -> Iterator[LedgerMessage]:
    """A first start of 2 s, 8 s on one slot, growth: prepared in 2 s, a stop of 0.5 s; the rest on two slots."""
    command = SubmitJob(job_id="a", tenant="t", spec=JOB.spec())
    admitted = JobAdmitted(
        job_id="a",
        tenant="t",
        spec=JOB.spec(),
        deadline_s=160.0,
        minimum_satisfactory_share=(),
        gpu_seconds=0,
        at_s=100,
    )
    yield decided("admission", 100.0, admitted, commands=(command,))
    yield placed(1, 100.0, 1)
    yield GenerationStarted(job_id="a", generation=1, num_gpus=1, iteration=0, at_s=102.0)
    yield placed(2, 110.0, 2)
    resize = ResizeTimeline(prepare_s=2.0, stop_s=0.5, first_step_s=0.25, bytes_moved=0)
    done = round(10 * RATE * speed)
    yield GenerationStarted(job_id="a", generation=2, num_gpus=2, iteration=done, resize=resize, at_s=112.75)
    left_s = (JOB.num_iterations - done) / (2 * RATE * speed)
    yield JobFinished(
        job_id="a", generation=2, iteration=JOB.num_iterations, condition="max_iterations", at_s=112.5 + left_s
    )
