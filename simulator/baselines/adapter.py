"""A baseline in the place of the services' admission and allocator: the same `decide`, on the same ledger.

A baseline promises nothing: its `JobAdmitted` carries an empty minimum satisfactory share and no GPU-seconds, so
there is no certificate to check, and a deadline that is kept is luck or skill. What it wants to know of the past and
the ledger's fold does not say is a fold of its own over the allocations that were decided (`books`): a function of the
ledger, as everything else.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from shared.messages import lifecycle
from shared.messages.commands import (
    AmendJob,
    CancelJob,
    CheckpointJob,
    Command,
    HoldQuote,
    ScaleJob,
    SubmitJob,
)
from shared.messages.events import (
    AdmissionEvent,
    AllocationDecided,
    AmendRefused,
    CancelRefused,
    CheckpointRefused,
    JobAdmitted,
    JobCancelled,
    JobRejected,
    PlanEvent,
    QuoteRefused,
    ScaleRefused,
)
from shared.messages.job_state import Job, Phase
from shared.messages.policy import Policy
from shared.messages.pool_state import PoolState, spec_of
from shared.scheduling.outlook import profile_known
from simulator.baselines.baseline import Baseline, BaselineJob
from simulator.baselines.books import Books, evolve
from simulator.baselines.view import View

SHORTEST_PLAN_S = 0.05
_NOBODY_ASKED: Mapping[str, int] = {}


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
        pool, said = books.pool, list[AdmissionEvent]()
        profiling = [job for job in pool.live_jobs.values() if job.phase is Phase.PROFILING]
        if not commands and not profiling:
            return ()
        view = View(books, self.requested_num_gpus, now_s)
        jobs = {job.job_id: job for job in view.jobs()}

        def say(event: AdmissionEvent) -> None:
            nonlocal pool
            said.append(event)
            pool = lifecycle.apply(pool, event, pool.sequence + 1)
            if isinstance(event, JobCancelled):
                jobs.pop(event.job_id, None)

        for command in commands:
            if isinstance(command, CancelJob):
                say(_cancelled(pool, command, now_s))
            elif isinstance(command, HoldQuote):
                why = f"{self.baseline.name} reserves nothing"
                say(QuoteRefused(job_id=command.job_id, explanation=why, at_s=now_s))
            elif isinstance(command, AmendJob):
                why = f"{self.baseline.name} does not plan ahead: nothing was promised that could be amended"
                say(AmendRefused(job_id=command.job_id, explanation=why, at_s=now_s))
            elif isinstance(command, CheckpointJob):
                why = f"{self.baseline.name} keeps nothing"
                say(CheckpointRefused(job_id=command.job_id, explanation=why, at_s=now_s))
            elif isinstance(command, ScaleJob):
                why = f"{self.baseline.name} chooses the numbers of GPUs alone"
                say(ScaleRefused(job_id=command.job_id, explanation=why, at_s=now_s))
            elif isinstance(command, SubmitJob) and pool.job(command.job_id) is None:
                say(self._answer(view, jobs, _asking(pool, command, now_s), now_s))
        for job in sorted(profiling, key=lambda job: (job.decided_sequence, job.job_id)):
            if job.job_id in pool.live_jobs and profile_known(pool, spec_of(job)):
                say(self._answer(view, jobs, job, now_s))
        return tuple(said)

    def allocation(self, books: Books, commands: tuple[Command, ...], now_s: float) -> tuple[PlanEvent, ...]:
        """New shares if something happened that can change them, or if the baseline wanted to look again."""
        pool, due_s = books.pool, _due_s(books)
        if not (due_s is not None and now_s >= due_s) and (
            pool.scheduling_event_sequence <= pool.allocation_based_on
        ):
            return ()
        view = View(books, self.requested_num_gpus, now_s)
        shares = self.baseline.shares(view.jobs(), view.num_gpus, now_s)
        until_s = max(shares.valid_until_s, now_s + SHORTEST_PLAN_S)
        return (
            AllocationDecided(
                num_gpus_by_job=shares.num_gpus_by_job,
                valid_until_s=None if math.isinf(until_s) else until_s,
                at_s=now_s,
            ),
        )

    def _answer(
        self, view: View, jobs: dict[str, BaselineJob], job: Job, now_s: float
    ) -> JobAdmitted | JobRejected:
        """One answer; who is admitted joins the jobs."""
        newcomer = view.job(job)
        refused = partial(
            JobRejected,
            job_id=job.job_id,
            tenant=job.tenant,
            spec=job.spec,
            deadline_s=job.deadline_s,
            at_s=now_s,
        )
        if newcomer is None:
            why = f"its speed on 1 to {view.num_gpus} GPUs is not known, or it does not run there"
            return refused(reason="unrunnable", explanation=why)
        if not self.baseline.admits(newcomer, tuple(jobs.values()), view.num_gpus, now_s):
            why = f"{self.baseline.name} expects it, or another job because of it, to end after its deadline"
            return refused(reason="deadline", explanation=why)
        jobs[job.job_id] = newcomer
        return JobAdmitted(
            job_id=job.job_id,
            tenant=job.tenant,
            spec=spec_of(job),
            deadline_s=job.deadline_s,
            minimum_satisfactory_share=(),
            gpu_seconds=0.0,
            at_s=now_s,
        )


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
