"""A workload: the jobs that a simulation submits, each with its true speed, in the order of their submission."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from shared.messages.job import JobClass
from shared.scheduling.scaling_curve import ScalingCurve
from simulator.workload.errors import BadRow


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job. Times are in seconds on the clock of the trace.

    deadline_s: absolute; None for best effort, and only then.
    num_gpus, duration_s: what the trace asked for and how long it ran there, for the rigid baselines alone;
    0 = unknown; num_gpus need be neither a power of two nor a level of the curve.
    state_bytes: parameters, optimizer and buffers, which move where its GPUs change; 0 = unknown.
    curve: at the levels where the job makes progress and may run, beyond the size of any cluster.
    min_gpus, max_gpus: where it may run. measured: the curve of its model, where it may not run on all of it.
    """

    job_id: str
    submitted_at_s: float
    num_iterations: int
    model_name: str
    global_batch_size: int
    deadline_s: float | None
    job_class: JobClass
    num_gpus: int = 0
    duration_s: float = 0.0
    state_bytes: int = 0
    curve: ScalingCurve
    min_gpus: int = 1
    max_gpus: int | None = None
    measured: ScalingCurve | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.submitted_at_s):
            raise ValueError(f"{self.job_id}: submitted at {self.submitted_at_s}")
        if self.num_iterations < 1:
            raise ValueError(f"{self.job_id}: a job needs an iteration to do")
        if (self.deadline_s is not None) != self.job_class.has_deadline:
            raise ValueError(f"{self.job_id}: slo and soft jobs have a deadline, the others have none")
        if self.deadline_s is not None and not self.submitted_at_s < self.deadline_s < math.inf:
            raise ValueError(f"{self.job_id}: the deadline must come after the submission")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs ordered by (submitted_at_s, job_id), each id once. skipped: bad rows that the reader passed over."""

    name: str
    jobs: tuple[TraceJob, ...]
    skipped: tuple[BadRow, ...] = ()

    def __post_init__(self) -> None:
        keys = [(job.submitted_at_s, job.job_id) for job in self.jobs]
        if keys != sorted(keys):
            raise ValueError("jobs must be ordered by submission, then by id")
        if len({job.job_id for job in self.jobs}) < len(keys):
            raise ValueError("two jobs have the same id")

    @staticmethod
    def of(name: str, jobs: Iterable[TraceJob], skipped: Iterable[BadRow] = ()) -> "Workload":
        """The jobs in any order."""
        ordered = sorted(jobs, key=lambda job: (job.submitted_at_s, job.job_id))
        return Workload(name=name, jobs=tuple(ordered), skipped=tuple(skipped))
