"""The synchronous API for scripts and notebooks: each call connects to the pool, does one thing and returns.

All functions find the pool alike: nats_url, else NATS_URL, else the pool that `eflow up` runs in data_dir or in the
nearest `.eflow`. All raise NoPoolHere, UnknownPool, Unavailable, BadCredentials.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Self

from elasticflow.client.client import REPLY_TIMEOUT_S, Client, blocking, with_client
from elasticflow.client.pool_endpoint import find_endpoint
from elasticflow.client.pool_front import PoolAnswer, PoolFront, PoolsDecision, named_pools
from elasticflow.client.replies import CheckpointReply, Decision, ProfileReply
from elasticflow.history.pool_views import JobView, job_view, job_views
from elasticflow.history.tables import as_html, as_text, jobs_table, table
from elasticflow.sdk.job import ElasticJob
from elasticflow.sdk.submission import code_of, profilable, quotable, submission_of
from elasticflow.shared.messages.events import (
    AmendRejected,
    CancelRejected,
    DeadlineQuoted,
    GpuLimitsCleared,
    GpuLimitsRejected,
    GpuLimitsSet,
    JobAmended,
    JobCancelled,
    QuoteRejected,
    QuoteReserved,
)
from elasticflow.times import Duration, Moment, moment_in_words

# --- notebook results ----------------------------------------------------------------------------------
# Results of the synchronous API, which a notebook shows as a table and `print` as lines.


class JobViews(tuple[JobView, ...]):
    """Jobs of a pool, in the order of their decisions. now_s: when they were looked at."""

    now_s: float

    def __new__(cls, views: Iterable[JobView], now_s: float) -> Self:
        made = super().__new__(cls, views)
        made.now_s = now_s
        return made

    def __getnewargs__(self) -> tuple[tuple[JobView, ...], float]:
        return tuple(self), self.now_s

    def __str__(self) -> str:
        return as_text(jobs_table(self, self.now_s, all_columns=True)) if self else "no jobs"

    def _repr_html_(self) -> str:
        return as_html(jobs_table(self, self.now_s, all_columns=True) if self else "no jobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote(DeadlineQuoted):
    """A `DeadlineQuoted` that a notebook shows as a table."""

    @classmethod
    def of(cls, quoted: DeadlineQuoted) -> "Quote":
        return cls(**{field.name: getattr(quoted, field.name) for field in fields(quoted)})

    def __str__(self) -> str:
        if self.earliest_deadline_s is None:
            return f"no quote: {self.explanation}"
        return f"earliest deadline {moment_in_words(math.ceil(self.earliest_deadline_s), self.at_s)}"

    def _repr_html_(self) -> str:
        earliest_s = self.earliest_deadline_s
        rows = [
            ("EARLIEST DEADLINE", "-" if earliest_s is None else moment_in_words(math.ceil(earliest_s), self.at_s)),
            ("GPU-SECONDS", "-" if self.gpu_seconds is None else f"{self.gpu_seconds:.0f}"),
            ("GPU TYPE", self.gpu_type or "-"),
            *([("WHY", self.explanation)] if self.explanation else []),
        ]
        return as_html(table("QUOTE", "", rows=rows))


# --- synchronous ---------------------------------------------------------------------------------------


def submit(
    job: ElasticJob,
    *,
    workdir: str | Path | None = None,
    secrets: Mapping[str, str] | None = None,
    job_id: str = "",
    continues: str = "",
    again: bool | None = None,
    timeout: Duration = REPLY_TIMEOUT_S,
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> Decision:
    """Submit a job with its code and wait for the decision: `JobAdmitted`, or `JobRejected` with a reason and
    counteroffers.

    workdir: folder of the project, sent with the job; by default only what its file imports from beside it.
    secrets: variables of its processes that only the pool's executors can read.
    continues: "han" begins from the newest checkpoint of the ended job han, "han@40" from that of iteration 40; its
    iterations count among the job's.
    job_id: a changed job takes that of one that failed or was cancelled. again: True takes that of any ended job, also
    for an unchanged one; False takes none.
    timeout: until the first reply. Raises InvalidJob, PackagingFailed, KeysUnusable, UnknownJob, Undecided.
    """
    ready = submission_of(job, workdir)
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)

    async def submit_by(client: Client) -> Decision:
        spec = ready.spec
        if secrets:
            spec = replace(spec, secrets=await client.seal(secrets))
        if continues:
            spec = replace(spec, continues=await client.continued(continues))
        return await client.submit(spec, job_id=job_id, code=ready.code, again=again, timeout=timeout)

    return with_client(endpoint, tenant, submit_by)


def submit_to_pools(
    job: ElasticJob,
    pools: str | Sequence[str],
    *,
    workdir: str | Path | None = None,
    secrets: Mapping[str, str] | None = None,
    job_id: str = "",
    tenant: str = "",
    nats_url: str = "",
    data_dir: Path | None = None,
) -> PoolsDecision:
    """Submit a job to the best of several pools: all are asked for a quote, the next one if the best one rejects it.

    pools: "a,b", or a list; each a name on the server of nats_url, NAME=nats://host:port, or the folder of a pool here.
    job_id: with it, a repeated call starts the job in no second pool.
    Raises InvalidJob, PackagingFailed, InputUnusable, PoolsUnusable.
    """
    ready = submission_of(job, workdir)
    front = PoolFront(pools=named_pools(pools, nats_url=nats_url, data_dir=data_dir), tenant=tenant)
    return blocking(front.submit(ready.spec, job_id=job_id, code=ready.code, secrets=secrets))


def quote_of_pools(
    job: ElasticJob,
    pools: str | Sequence[str],
    *,
    workdir: str | Path | None = None,
    tenant: str = "",
    nats_url: str = "",
    data_dir: Path | None = None,
) -> tuple[PoolAnswer, ...]:
    """The quote of each pool, or why it has none, in the order of `pools`: see `submit_to_pools`. Submits no job.

    Raises InvalidJob, InputUnusable, and PoolsUnusable if no pool replies.
    """
    ready = submission_of(quotable(job), workdir)
    front = PoolFront(pools=named_pools(pools, nats_url=nats_url, data_dir=data_dir), tenant=tenant)
    return blocking(front.quotes(ready.spec))


def quote(
    job: ElasticJob,
    *,
    workdir: str | Path | None = None,
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> Quote:
    """The earliest deadline that admission would promise now. Submits no job.

    Raises InvalidJob, NoAdmission, NotQuoted.
    """
    ready = submission_of(quotable(job), workdir)
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return Quote.of(with_client(endpoint, tenant, lambda client: client.quote(ready.spec)))


def profile(
    job: ElasticJob,
    *,
    workdir: str | Path | None = None,
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> ProfileReply:
    """The job's throughput on each number of GPUs in its range: `JobProfiled`. Unknown ones are measured in a
    profiling run. Submits no job. Raises InvalidJob, Undecided."""
    ready = profilable(job, code_of(job, workdir))
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return with_client(endpoint, tenant, lambda client: client.profile(ready.spec, code=ready.code))


def reserve(
    job: ElasticJob,
    *,
    workdir: str | Path | None = None,
    duration: Duration = "60s",
    job_id: str = "",
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> QuoteReserved | QuoteRejected:
    """Quote a deadline and reserve what it needs for `duration`, 10 minutes at most.

    To take the quote, submit the job with `set_deadline(reserved.deadline_s)` and `job_id=reserved.job_id`: it is
    admitted whatever was promised meanwhile. Raises InvalidJob, Undecided.
    """
    ready = submission_of(quotable(job), workdir)
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return with_client(endpoint, tenant, lambda client: client.reserve(ready.spec, duration=duration, job_id=job_id))


def amend(
    job_id: str,
    *,
    deadline: Moment | None = None,
    within: Duration | None = None,
    max_iterations: int | None = None,
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> JobAmended | AmendRejected:
    """Change the deadline or the iterations of an admitted job. `within` counts from now.

    If that breaks a promise, admission rejects it and the existing promise is unchanged. Raises InvalidJob, Undecided.
    """
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return with_client(
        endpoint,
        tenant,
        lambda client: client.amend(job_id, deadline=deadline, within=within, max_iterations=max_iterations),
    )


def scale(
    job_id: str,
    *,
    min_gpus: int | None = None,
    max_gpus: int | None = None,
    without: str = "",
    until: Moment | None = None,
    duration: Duration | None = None,
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> GpuLimitsSet | GpuLimitsRejected:
    """Set an operator's GPU limits on a job. until, duration: when they end; without both they never expire.

    without: what the job gives up, such as "node-1:3", "node-1:0,3 node-2:1" or the whole "node-1".
    Admission rejects limits that break a promise, and offers a number of GPUs. Raises InvalidJob, Undecided.
    """
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return with_client(
        endpoint,
        tenant,
        lambda client: client.scale(
            job_id,
            min_gpus=min_gpus,
            max_gpus=max_gpus,
            without=without,
            until=until,
            duration=duration,
        ),
    )


def release(
    job_id: str, *, tenant: str = "", nats_url: str = "", pool: str = "", data_dir: Path | None = None
) -> GpuLimitsCleared | GpuLimitsRejected:
    """Clear a job's GPU limits. Raises Undecided."""
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return with_client(endpoint, tenant, lambda client: client.release(job_id))


def checkpoint(
    job_id: str, *, tenant: str = "", nats_url: str = "", pool: str = "", data_dir: Path | None = None
) -> CheckpointReply:
    """Write a checkpoint of a job now: `CheckpointWritten` once it is complete on the disk. If the job does not train:
    `CheckpointUpToDate`, its newest checkpoint."""
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return with_client(endpoint, tenant, lambda client: client.checkpoint(job_id))


def cancel(
    job_id: str,
    *,
    reason: str = "",
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> JobCancelled | CancelRejected:
    """Stop a job and free its GPUs; its last checkpoint is kept. Raises Undecided."""
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return with_client(endpoint, tenant, lambda client: client.cancel(job_id, reason=reason))


def jobs(*, ended: bool = True, nats_url: str = "", pool: str = "", data_dir: Path | None = None) -> JobViews:
    """The pool's jobs in the order of their decisions, a tuple that a notebook shows as a table. ended: include those
    that have ended."""

    async def look(client: Client) -> JobViews:
        now_s = client.now_s()
        return JobViews(job_views(await client.state(), now_s, ended=ended), now_s)

    return with_client(find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir), "", look)


def wait(
    job_id: str,
    *,
    timeout: Duration | None = None,
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> JobView:
    """The job, once it has ended; `activity` says how. Raises UnknownJob, NotEnded."""

    async def ended(client: Client) -> JobView:
        return job_view(await client.wait(job_id, timeout=timeout), client.now_s())

    return with_client(find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir), "", ended)
