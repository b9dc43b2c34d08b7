"""The client for scripts and notebooks: each call connects, does one thing and returns; no `await`."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from elasticflow.answers import Checkpointing, Decision, Measured
from elasticflow.client import Client
from elasticflow.endpoint import Endpoint, find_endpoint
from elasticflow.job import ElasticJob
from elasticflow.submission import measurable, quotable, submission_of
from elasticflow.views import JobView, job_view, job_views
from shared.messages.events import (
    AmendRefused,
    BoundEnded,
    CancelRefused,
    DeadlineQuoted,
    JobAmended,
    JobCancelled,
    JobScaled,
    QuoteHeld,
    QuoteRefused,
    ScaleRefused,
)

T = TypeVar("T")


def submit(
    job: ElasticJob,
    *,
    job_id: str = "",
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> Decision:
    """Hand a job in, with its code, and wait for the decision: `JobAdmitted`, or `JobRejected` with a reason
    and the earliest deadline that could have been promised.

    Where: nats_url, else NATS_URL, else the pool that `eflow up` runs in data_dir or the nearest `.eflow`.
    Raises InvalidJob, PackagingFailed, and the failures of `shared.errors`.
    """
    ready = submission_of(job)
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return _with_client(
        endpoint, tenant, lambda client: client.submit(ready.spec, job_id=job_id, code=ready.code)
    )


def quote(
    job: ElasticJob, *, tenant: str = "", nats_url: str = "", pool: str = "", data_dir: Path | None = None
) -> DeadlineQuoted:
    """The earliest deadline that this job would be promised now; nothing is submitted."""
    ready = submission_of(quotable(job))
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return _with_client(endpoint, tenant, lambda client: client.quote(ready.spec))


def profile(
    job: ElasticJob, *, tenant: str = "", nats_url: str = "", pool: str = "", data_dir: Path | None = None
) -> Measured:
    """How fast this job trains on each number of GPUs in its range: `JobMeasured`. Measured in a pre-run where nobody
    knows; nothing is submitted."""
    ready = measurable(submission_of(quotable(job)))
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return _with_client(endpoint, tenant, lambda client: client.profile(ready.spec, code=ready.code))


def hold(
    job: ElasticJob,
    *,
    hold_s: float = 60.0,
    job_id: str = "",
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> QuoteHeld | QuoteRefused:
    """A quote, and what keeps it reserved for hold_s seconds (600 at most). To take it, submit the job with
    `set_deadline(at=held.deadline_s)` and `job_id=held.job_id`: it is admitted, whatever was promised meanwhile."""
    ready = submission_of(quotable(job))
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return _with_client(
        endpoint, tenant, lambda client: client.hold(ready.spec, hold_s=hold_s, job_id=job_id)
    )


def amend(
    job_id: str,
    *,
    deadline_s: float | None = None,
    max_iterations: int | None = None,
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> JobAmended | AmendRefused:
    """Another deadline (seconds since 1970) or other iterations for an admitted job, running or not. Refused where
    that cannot be kept beside all other promises: then the old promise stays."""
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return _with_client(
        endpoint,
        tenant,
        lambda client: client.amend(job_id, deadline_s=deadline_s, max_iterations=max_iterations),
    )


def scale(
    job_id: str,
    *,
    min_gpus: int | None = None,
    max_gpus: int | None = None,
    until_s: float | None = None,
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> JobScaled | ScaleRefused:
    """As its operator, let a job hold at least or at most so many GPUs, until until_s (seconds since 1970) if that is
    given. Refused, with a number that could be had, where a promise would break."""
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return _with_client(
        endpoint,
        tenant,
        lambda client: client.scale(job_id, min_gpus=min_gpus, max_gpus=max_gpus, until_s=until_s),
    )


def release(
    job_id: str, *, tenant: str = "", nats_url: str = "", pool: str = "", data_dir: Path | None = None
) -> BoundEnded | ScaleRefused:
    """Let the system choose a job's number of GPUs again."""
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return _with_client(endpoint, tenant, lambda client: client.release(job_id))


def checkpoint(
    job_id: str, *, tenant: str = "", nats_url: str = "", pool: str = "", data_dir: Path | None = None
) -> Checkpointing:
    """Keep the state of a job now: `CheckpointWritten` when that is whole on the disk. Of a job that does not train,
    which checkpoint is its newest: `CheckpointKept`."""
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return _with_client(endpoint, tenant, lambda client: client.checkpoint(job_id))


def cancel(
    job_id: str,
    *,
    reason: str = "",
    tenant: str = "",
    nats_url: str = "",
    pool: str = "",
    data_dir: Path | None = None,
) -> JobCancelled | CancelRefused:
    """Stop a job and free its GPUs; its last checkpoint stays."""
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return _with_client(endpoint, tenant, lambda client: client.cancel(job_id, reason=reason))


def jobs(
    *, ended: bool = True, nats_url: str = "", pool: str = "", data_dir: Path | None = None
) -> tuple[JobView, ...]:
    """The pool's jobs, in the order of their decisions."""

    async def look(client: Client) -> tuple[JobView, ...]:
        return job_views(await client.state(), client.now_s(), ended=ended)

    return _with_client(find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir), "", look)


def wait(job_id: str, *, nats_url: str = "", pool: str = "", data_dir: Path | None = None) -> JobView:
    """The job, once it has ended; `activity` says how. Raises UnknownJob."""

    async def ended(client: Client) -> JobView:
        return job_view(await client.wait(job_id), client.now_s())

    return _with_client(find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir), "", ended)


def _with_client(endpoint: Endpoint, tenant: str, call: Callable[[Client], Awaitable[T]]) -> T:
    async def connected() -> T:
        async with Client.connect(endpoint, tenant=tenant) as client:
            return await call(client)

    return _blocking(connected())


def _blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end, also where an event loop runs already: a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, coroutine).result()
