"""A baseline in the place of the services' admission and allocator: the same `decide`, on the same ledger.

A baseline promises nothing: its `JobAdmitted` carries an empty minimum satisfactory share and no GPU-seconds, so
there is no certificate to check, and a deadline that is kept is luck or skill. What it wants to know of the past
and the ledger's fold does not say (GPU-seconds attained, since when a share is held) is a fold of its own over the
allocations that were decided: a function of the ledger, as everything else.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from shared.messages import lifecycle
from shared.messages.commands import CancelJob, Command, SubmitJob
from shared.messages.events import (
    AdmissionEvent,
    AllocationDecided,
    CancelRefused,
    JobAdmitted,
    JobCancelled,
    JobRejected,
    PlanDecided,
    PlanEvent,
)
from shared.messages.job import JobClass
from shared.messages.policy import LedgerMessage, Policy
from shared.messages.pool_state import Job, Phase, PoolState, spec_of
from shared.scheduling.outlook import iteration_at, known_curve, profile_known
from shared.scheduling.resize_cost import ResizeCost
from simulator.baselines.baseline import Baseline, BaselineJob

SHORTEST_PLAN_S = 0.05
WEIGHTS: Mapping[JobClass, float] = {JobClass.SLO: 10.0, JobClass.SOFT: 5.0, JobClass.BEST_EFFORT: 1.0}
_NOBODY_ASKED: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """How one job has fared. attained_gpu_seconds: up to held_since_s."""

    num_gpus: int = 0
    held_since_s: float
    attained_gpu_seconds: float = 0.0
    num_resizes: int = 0

    def until(self, now_s: float) -> float:
        """GPU-seconds attained by then."""
        return self.attained_gpu_seconds + self.num_gpus * max(now_s - self.held_since_s, 0.0)

    def change(self, num_gpus: int, now_s: float) -> "Tenure":
        if num_gpus == self.num_gpus:
            return self
        return Tenure(
            num_gpus=num_gpus,
            held_since_s=now_s,
            attained_gpu_seconds=self.until(now_s),
            num_resizes=self.num_resizes + 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The folded ledger, and the tenures of its live jobs."""

    pool: PoolState
    tenures: Mapping[str, Tenure] = field(default_factory=dict[str, Tenure])

    def tenure(self, job: Job) -> Tenure:
        return self.tenures.get(job.job_id) or Tenure(held_since_s=job.decided_at_s)


def baseline_policies(
    baseline: Baseline, requested_num_gpus: Mapping[str, int] = _NOBODY_ASKED
) -> tuple[Policy[Books], Policy[Books]]:
    """Admission and allocator as this baseline would be them.

    requested_num_gpus: by job id, what a trace says that users asked for. Of other jobs, and where it is 0, it is taken
    to be the fewest GPUs that meet the deadline alone, or else the fewest on which the job runs.
    """
    seat = _Seat(baseline, requested_num_gpus)
    return _policy("admission", seat.admission, _never), _policy("allocator", seat.allocation, _due_s)


@dataclass(frozen=True, slots=True)
class _Seat:
    """A baseline at the services' table."""

    baseline: Baseline
    requested_num_gpus: Mapping[str, int]

    def admission(
        self, books: Books, commands: tuple[Command, ...], now_s: float
    ) -> tuple[AdmissionEvent, ...]:
        """Answer each wish in turn, each on what the ones before it left; then the jobs whose speed is known now."""
        said: list[AdmissionEvent] = []

        def say(event: AdmissionEvent) -> None:
            nonlocal books
            said.append(event)
            books = replace(books, pool=lifecycle.apply(books.pool, event, books.pool.sequence + 1))

        for command in commands:
            if isinstance(command, CancelJob):
                say(_cancelled(books.pool, command, now_s))
            elif books.pool.job(command.job_id) is None:
                say(self._answer(books, _asking(books.pool, command, now_s), now_s))
        measured = (
            job
            for job in books.pool.live_jobs.values()
            if job.phase is Phase.PROFILING and profile_known(books.pool, spec_of(job))
        )
        for job in sorted(measured, key=lambda job: (job.decided_sequence, job.job_id)):
            say(self._answer(books, job, now_s))
        return tuple(said)

    def allocation(self, books: Books, commands: tuple[Command, ...], now_s: float) -> tuple[PlanEvent, ...]:
        """New shares if something happened that can change them, or if the baseline wanted to look again."""
        pool, due_s = books.pool, _due_s(books)
        if not (due_s is not None and now_s >= due_s) and (
            pool.scheduling_event_sequence <= pool.allocation_based_on
        ):
            return ()
        shares = self.baseline.shares(self._jobs(books, now_s), pool.num_gpus, now_s)
        until_s = max(shares.valid_until_s, now_s + SHORTEST_PLAN_S)
        return (
            AllocationDecided(
                num_gpus_by_job=shares.num_gpus_by_job,
                valid_until_s=None if math.isinf(until_s) else until_s,
                at_s=now_s,
            ),
        )

    def _answer(self, books: Books, job: Job, now_s: float) -> JobAdmitted | JobRejected:
        num_gpus, newcomer = books.pool.num_gpus, self._seen(books, job, now_s)
        refused = partial(
            JobRejected,
            job_id=job.job_id,
            tenant=job.tenant,
            spec=job.spec,
            deadline_s=job.deadline_s,
            at_s=now_s,
        )
        if newcomer is None:
            why = f"its speed on 1 to {num_gpus} GPUs is not known, or it does not run there"
            return refused(reason="unrunnable", explanation=why)
        if not self.baseline.admits(newcomer, self._jobs(books, now_s), num_gpus, now_s):
            why = f"{self.baseline.name} expects it, or another job because of it, to end after its deadline"
            return refused(reason="deadline", explanation=why)
        return JobAdmitted(
            job_id=job.job_id,
            tenant=job.tenant,
            spec=spec_of(job),
            deadline_s=job.deadline_s,
            minimum_satisfactory_share=(),
            gpu_seconds=0.0,
            at_s=now_s,
        )

    def _jobs(self, books: Books, now_s: float) -> list[BaselineJob]:
        """The admitted jobs whose speed is known, by id."""
        live_jobs = books.pool.live_jobs
        admitted = (live_jobs[job_id] for job_id in sorted(live_jobs))
        seen = (self._seen(books, job, now_s) for job in admitted if job.phase is Phase.ADMITTED)
        return [job for job in seen if job is not None]

    def _seen(self, books: Books, job: Job, now_s: float) -> BaselineJob | None:
        spec, tenure, pool = spec_of(job), books.tenure(job), books.pool
        curve = known_curve(pool, spec)
        if curve is None:
            return None
        deadline_s = None if job.deadline_s is None else job.deadline_s - pool.config.deadline_slack_s
        seen = BaselineJob(
            job_id=job.job_id,
            submitted_at_s=job.decided_at_s,
            deadline_s=deadline_s,
            job_class=spec.job_class,
            curve=curve,
            remaining_iterations=max(spec.max_iterations - iteration_at(job, curve, now_s), 0.0),
            num_iterations=float(spec.max_iterations),
            requested_num_gpus=self.requested_num_gpus.get(job.job_id, 0),
            attained_gpu_seconds=tenure.until(now_s),
            current_num_gpus=tenure.num_gpus,
            held_since_s=tenure.held_since_s,
            num_resizes=tenure.num_resizes,
            weight=WEIGHTS[spec.job_class],
            resize_cost=resize_cost(pool),
        )
        return seen if seen.requested_num_gpus else replace(seen, requested_num_gpus=_fewest_in_time(seen))


def _fewest_in_time(job: BaselineJob) -> int:
    """What a user who knows the curve would ask for."""
    for level in job.curve.levels:
        needed_s = job.resize_cost.seconds(level) + job.num_iterations / job.curve.throughput(level)
        if job.deadline_s is not None and job.submitted_at_s + needed_s <= job.deadline_s:
            return level
    return job.curve.levels[0]


def resize_cost(pool: PoolState) -> ResizeCost:
    """What a change of GPUs costs in this pool: as its settings say, or as seen if starts are slower there."""
    by_num_gpus = pool.config.resize_cost_s_by_num_gpus
    if not by_num_gpus:
        return ResizeCost.flat(max(pool.config.resize_cost_s, pool.start_cost_s))
    counts = sorted(by_num_gpus)
    return ResizeCost(tuple(counts), tuple(by_num_gpus[count] for count in counts))


def _asking(pool: PoolState, wish: SubmitJob, now_s: float) -> Job:
    """The job as it would be if it were admitted."""
    return Job(
        job_id=wish.job_id,
        tenant=wish.tenant,
        spec=wish.spec,
        phase=Phase.ADMITTED,
        decided_at_s=now_s,
        decided_sequence=pool.sequence,
        deadline_s=wish.spec.resolved_deadline_s(now_s),
    )


def _cancelled(pool: PoolState, wish: CancelJob, now_s: float) -> AdmissionEvent:
    job = pool.live_jobs.get(wish.job_id)
    if job is None or job.tenant != wish.tenant:
        why = f"tenant {wish.tenant} has no such job, or it has ended"
        return CancelRefused(job_id=wish.job_id, explanation=why, at_s=now_s)
    return JobCancelled(job_id=wish.job_id, reason=wish.reason, at_s=now_s)


# --- the fold -------------------------------------------------------------------------------------------


def evolve(books: Books, message: LedgerMessage, sequence: int) -> Books:
    """The ledger's own fold, and the tenures that follow from each allocation."""
    if sequence <= books.pool.sequence:
        return books
    books = replace(books, pool=lifecycle.evolve(books.pool, message, sequence))
    if isinstance(message, PlanDecided):
        for event in message.events:
            if isinstance(event, AllocationDecided):
                books = _allocated(books, event.at_s)
    return books


def _allocated(books: Books, now_s: float) -> Books:
    live = books.pool.live_jobs.values()
    return replace(books, tenures={job.job_id: books.tenure(job).change(job.num_gpus, now_s) for job in live})


def _policy(
    service: str,
    decide: Callable[[Books, tuple[Command, ...], float], tuple[PlanEvent, ...]],
    wake_at_s: Callable[[Books], float | None],
) -> Policy[Books]:
    return Policy(
        service=service,
        start=lambda pool: Books(pool=pool),
        pool=lambda books: books.pool,
        evolve=evolve,
        decide=decide,
        observe=lambda books, note, now_s: books,
        wake_at_s=wake_at_s,
    )


def _due_s(books: Books) -> float | None:
    return books.pool.allocation_valid_until_s


def _never(books: Books) -> None:
    return None
