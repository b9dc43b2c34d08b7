"""The pool and the jobs of the benchmark, for live runs and for the simulator.

A step sleeps for a time for each sample, as a worker waits for its GPU, so that the load of the machine changes starts
and switches more than steps. A live run has the jobs on CPU slots of a real pool, and keeps its ledger.
"""

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from elasticflow.client.ledger import write_ledger
from elasticflow.shared.messages.export import read_export
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.state.policy import LedgerMessage
from elasticflow.simulator.replay.recorded_ledger import read_entries
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, Workload
from testbed.real_pool import RunningPool, running_pool

NUM_NODES, SLOTS_PER_NODE = 3, 2
CLUSTER = ClusterShape(num_nodes=NUM_NODES, gpus_per_node=SLOTS_PER_NODE)
BATCH_SIZE = 8
LEVELS = (1, 2, 4)
CONTROL, CONTROL_S = "control", 60.0
SAMPLE_S: Mapping[str, float] = {"steps-20ms": 0.02, "steps-40ms": 0.04, CONTROL: 0.02}  # by model
_MARGIN = 0.35
_BEST_EFFORT_SHARE = 0.3
_ALONE_S = (6.0, 24.0)  # on one slot
_TIGHTNESS = (1.2, 3.0)  # of deadlines, over the time that a plan counts on with one slot
_TIGHT = (0.6, 2.0)  # the same for jobs that compete, over the time on one slot
_MEAN_GAP_S = 3.0
_START_S = 4.0  # of each deadline, for starts
_LEVEL_S = 6.0  # of a job that shows the speed of its model on a number of slots


def nominal_rates(model_name: str) -> Mapping[int, float]:
    """Iterations/s as the pool's settings say, by number of slots."""
    return {num: num / (BATCH_SIZE * SAMPLE_S[model_name]) for num in LEVELS}


CONFIG = PoolConfig(
    stop_free=True,
    resize_cost_s=2.0,
    throughput_margin=_MARGIN,
    deadline_slack_s=1.0,
    curves={f"{name}/b{BATCH_SIZE}": nominal_rates(name) for name in SAMPLE_S},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """at_s: since the first one. deadline_in_s: None for best effort. max_gpus: None for any number."""

    job_id: str
    model_name: str
    at_s: float
    num_iterations: int
    deadline_in_s: float | None
    min_gpus: int = 1
    max_gpus: int | None = None

    @property
    def job_class(self) -> JobClass:
        return JobClass.BEST_EFFORT if self.deadline_in_s is None else JobClass.SLO

    def spec(self) -> JobSpec:
        """The specification for the live pool."""
        return JobSpec(
            training_function="testbed.user_code.tiny_jobs:Steps",
            model_name=self.model_name,
            global_batch_size=BATCH_SIZE,
            hyperparameters={"step_s": 0.0, "sample_s": SAMPLE_S[self.model_name]},
            max_iterations=self.num_iterations,
            job_class=self.job_class,
            deadline_in_s=self.deadline_in_s,
            min_gpus=self.min_gpus,
            max_gpus=self.max_gpus,
        )

    def trace_job(self, rates: Mapping[int, float]) -> TraceJob:
        """The job for the simulator. rates: iterations/s by number of slots."""
        levels = [num for num in LEVELS if self.min_gpus <= num <= (self.max_gpus or num)]
        return TraceJob(
            job_id=self.job_id,
            submitted_at_s=self.at_s,
            num_iterations=self.num_iterations,
            model_name=self.model_name,
            global_batch_size=BATCH_SIZE,
            deadline_s=None if self.deadline_in_s is None else self.at_s + self.deadline_in_s,
            job_class=self.job_class,
            curve=ScalingCurve(tuple(levels), tuple(rates[num] for num in levels)),
            measured=ScalingCurve(LEVELS, tuple(rates[num] for num in LEVELS)),
            min_gpus=self.min_gpus,
            max_gpus=self.max_gpus,
        )


def arrivals(seed: int, num_jobs: int, scale: float = 1.0) -> tuple[Arrival, ...]:
    """The control job, which holds one slot, and so many other jobs at random times.

    scale: of the durations of jobs and of the gaps between them.
    """
    chance = np.random.default_rng(seed)
    control_s = scale * CONTROL_S
    control = Arrival(
        job_id=CONTROL,
        model_name=CONTROL,
        at_s=0.0,
        num_iterations=round(control_s * nominal_rates(CONTROL)[1]),
        deadline_in_s=_START_S + 1.1 * control_s / (1 - _MARGIN),
        max_gpus=1,
    )
    at_s = np.cumsum(chance.exponential(scale * _MEAN_GAP_S, num_jobs))
    return (control, *(_arrival(chance, f"job-{number}", float(at), scale) for number, at in enumerate(at_s)))


def tight_arrivals(seed: int, num_jobs: int) -> tuple[Arrival, ...]:
    """The same jobs in a sixth of the time, so that more is asked than fits. Deadlines leave 1 s for starts.

    On up to two slots, where the margin covers the true speeds: with four they have 0.45 of the pool's settings.
    """
    control, *jobs = arrivals(seed, num_jobs)
    chance = np.random.default_rng((seed, num_jobs))
    return (control, *(_tight(job, float(chance.uniform(*_TIGHT))) for job in jobs))


def _tight(job: Arrival, tightness: float) -> Arrival:
    alone_s = job.num_iterations / nominal_rates(job.model_name)[1]
    return replace(job, at_s=job.at_s / 6, deadline_in_s=1.0 + tightness * alone_s, max_gpus=2)


def _arrival(chance: np.random.Generator, job_id: str, at_s: float, scale: float) -> Arrival:
    model_name = ("steps-20ms", "steps-40ms")[int(chance.integers(2))]
    alone_s, tightness = scale * float(chance.uniform(*_ALONE_S)), float(chance.uniform(*_TIGHTNESS))
    is_best_effort = float(chance.random()) < _BEST_EFFORT_SHARE
    return Arrival(
        job_id=job_id,
        model_name=model_name,
        at_s=at_s,
        num_iterations=max(round(alone_s * nominal_rates(model_name)[1]), 1),
        deadline_in_s=None if is_best_effort else _START_S + tightness * alone_s / (1 - _MARGIN),
    )


def calibration_arrivals(seed: int, num_jobs: int, scale: float = 1.0) -> tuple[Arrival, ...]:
    """The same kind of jobs, then one of each model on each number of slots, so that all speeds are recorded."""
    jobs = arrivals(seed, num_jobs, scale)
    levels = (
        Arrival(
            job_id=f"{model_name}-on-{num}",
            model_name=model_name,
            at_s=jobs[-1].at_s,
            num_iterations=round(_LEVEL_S * nominal_rates(model_name)[num]),
            deadline_in_s=None,
            min_gpus=num,
            max_gpus=num,
        )
        for model_name in SAMPLE_S
        if model_name != CONTROL
        for num in LEVELS
    )
    return (*jobs, *levels)


def workload(jobs: tuple[Arrival, ...], rates_by_model: Mapping[str, Mapping[int, float]]) -> Workload:
    """The jobs for the simulator."""
    return Workload.of("fidelity", (job.trace_job(rates_by_model[job.model_name]) for job in jobs))


# --- live runs -----------------------------------------------------------------------------------------


_WARM_UP_S = 10.0  # the nodes make warm workers, as in a pool that runs for long


def run_unless_kept(jobs: tuple[Arrival, ...], ledger: Path, *, resume: bool, config: PoolConfig = CONFIG) -> None:
    """resume: a ledger that is there is kept."""
    if not resume or not ledger.exists():
        Console(stderr=True).print(f"running {ledger.stem}")
        asyncio.run(record(jobs, ledger, config))


async def record(jobs: tuple[Arrival, ...], ledger: Path, config: PoolConfig = CONFIG) -> None:
    """Run the jobs until all have ended. The ledger appears whole, or not at all."""
    with tempfile.TemporaryDirectory(prefix="ef-fidelity-") as folder:
        async with running_pool(Path(folder), num_nodes=NUM_NODES, replicas={}, config=config) as pool:
            await pool.when(lambda state: state.num_gpus == CLUSTER.num_gpus, "all nodes have joined")
            await asyncio.sleep(_WARM_UP_S)
            async with asyncio.TaskGroup() as tasks:
                for job in jobs:
                    tasks.create_task(_run(pool, job))
            await write_ledger(pool.client, ledger)


async def _run(pool: RunningPool, job: Arrival) -> None:
    await asyncio.sleep(job.at_s)
    await pool.client.submit(job.spec(), job_id=job.job_id)
    await pool.client.wait(job.job_id)


def read_messages(ledger: Path) -> tuple[LedgerMessage, ...]:
    with ledger.open("rb") as opened:
        return tuple(entry.message for entry in read_entries(read_export(opened)))
