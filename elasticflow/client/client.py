"""The asynchronous client of one pool: submit, quote, reserve, amend, scale, checkpoint, cancel, wait.

It reads the ledger, or with the key of a tenant that tenant's view. The same without `await` is
`elasticflow/sdk/synchronous.py`.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar, get_args

from elasticflow.client.artifacts import ArtifactReader
from elasticflow.client.command_requests import Package, ask_quote, check, fresh_job_id, fresh_message_id
from elasticflow.client.loads import DetachedLoads
from elasticflow.client.pool_endpoint import DEFAULT_TENANT, Endpoint, find_endpoint
from elasticflow.client.replies import CheckpointReply, Decision, ProfileReply
from elasticflow.client.running_workers import RunningWorkers
from elasticflow.client.tenant_view import TenantView
from elasticflow.client.worker_logs import StoredLogs
from elasticflow.errors import InvalidJob, KeysUnusable, UnknownPool, UnknownQuote
from elasticflow.shared.errors import NotPermitted
from elasticflow.shared.messages import codec
from elasticflow.shared.messages.commands import (
    AmendJob,
    CancelJob,
    ProfileJob,
    QuoteDeadline,
    RequestCheckpoint,
    ReserveQuote,
    SetGpuLimits,
    SubmitJob,
)
from elasticflow.shared.messages.event_summary import gpus_of_words
from elasticflow.shared.messages.events import (
    AmendRejected,
    CancelRejected,
    DeadlineQuoted,
    GpuLimitsCleared,
    GpuLimitsRejected,
    GpuLimitsSet,
    JobAmended,
    JobCancelled,
    JobRejected,
    NodeReported,
    ProfileRequested,
    QuoteRejected,
    QuoteReserved,
)
from elasticflow.shared.messages.events.nodes import GpuReport
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.job_environment import SealedSecret
from elasticflow.shared.messages.job_spec import ContinuedJob, JobSpec
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import with_retry
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.nats.client import masked
from elasticflow.shared.runtime.process.clock import Clock, SystemClock
from elasticflow.shared.runtime.process.nats_access import NatsAccess
from elasticflow.shared.state.idempotent_replies import is_submission_of
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import QuoteReservation
from elasticflow.times import Duration, Moment, seconds_of, timestamp_of

REPLY_TIMEOUT_S = 30.0
CHECKPOINT_TIMEOUT_S = 300.0  # a large checkpoint takes minutes
SEEN_WITHIN_S = 10.0


class Client(ArtifactReader, DetachedLoads):
    """One pool, over one connection; made by `Client.connect`."""

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls, endpoint: Endpoint | None = None, *, tenant: str = "", clock: Clock | None = None
    ) -> "AsyncGenerator[Client, None]":
        """Connect to a pool, by default the one of NATS_URL or of the nearest `.eflow`. tenant: else EF_TENANT.

        Raises NoPoolHere, UnknownPool, Unavailable, BadCredentials, BadSettings.
        """
        endpoint = endpoint or find_endpoint()
        tenant = tenant or os.environ.get("EF_TENANT", "") or DEFAULT_TENANT
        view: TenantView | None = None
        bus = await connect_nats(endpoint.nats_url, name="eflow", access=NatsAccess.from_environment(os.environ))
        try:
            try:
                if not await with_retry(bus.pool_exists, endpoint.pool):
                    raise UnknownPool(endpoint.pool, masked(endpoint.nats_url), await bus.pools())
            except NotPermitted:  # the key of a tenant
                view = TenantView(bus, endpoint.pool, tenant)
            yield cls(bus, endpoint, tenant, clock or SystemClock(), view)
        finally:
            await bus.close()

    def stored_logs(self, job: Job, rank: int | None = None) -> StoredLogs:
        """What the workers of a job have written, from the bus. rank: None for all workers."""
        return StoredLogs(self._bus, self._pool, job, rank)

    async def gpu_reports(self, node_ids: Iterable[str]) -> dict[str, tuple[GpuReport, ...]]:
        """How the GPUs of these nodes are used, by their last heartbeats; nothing with the key of a tenant."""
        if self.view is not None:
            return {}
        node_ids = tuple(node_ids)
        bucket = streams.node_bucket(self._pool)
        values = await asyncio.gather(*(with_retry(self._bus.get_value, bucket, node_id) for node_id in node_ids))
        heartbeats = [None if value is None else codec.message_or_none(value.data) for value in values]
        return {
            node_id: heartbeat.gpus
            for node_id, heartbeat in zip(node_ids, heartbeats, strict=True)
            if isinstance(heartbeat, NodeReported)
        }

    def running_workers(self, job: Job) -> RunningWorkers:
        """The workers of a live job of this tenant: their stacks, and commands beside them."""
        return RunningWorkers(self._bus, self._pool, self.tenant, job)

    async def submit(
        self,
        spec: JobSpec,
        *,
        job_id: str = "",
        code: Package | None = None,
        again: bool | None = None,
        on_undecided: Callable[[ProfileRequested], None] | None = None,
        timeout: Duration = REPLY_TIMEOUT_S,
    ) -> Decision:
        """Submit a job and wait for the decision. A job of unknown speed is profiled before it.

        Resubmitting the same specification under the same id has no effect and gets the same reply. Another one takes
        the id of a job that failed or was cancelled. again: True takes the id of any ended job, False of none.
        timeout: until the first reply. Raises InvalidJob, Undecided.
        """
        command = await self._submission(spec, job_id, again=again)
        kinds = get_args(Decision)
        decision = await self._reply_to(command, kinds, timeout, code=code, on_undecided=on_undecided)
        if command.replaces and not isinstance(decision, JobRejected):
            await self._until_seen_without(command.job_id, command.replaces)
        return decision

    async def profile(
        self,
        spec: JobSpec,
        *,
        code: Package | None = None,
        on_undecided: Callable[[ProfileRequested], None] | None = None,
        timeout: Duration = REPLY_TIMEOUT_S,
    ) -> ProfileReply:
        """Measure the job's throughput on each number of GPUs in its range, in a profiling run unless it is known.

        Submits no job. timeout: until the first reply. Raises InvalidJob, Undecided.
        """
        command = ProfileJob(job_id=f"profile-{fresh_job_id(spec)}"[:64], tenant=self.tenant, spec=spec)
        kinds = get_args(ProfileReply)
        return await self._reply_to(command, kinds, timeout, code=code, on_undecided=on_undecided)

    async def post(
        self, spec: JobSpec, *, job_id: str = "", code: Package | None = None, again: bool | None = None
    ) -> str:
        """Submit a job without waiting for the decision; a rejection has no counteroffers. Returns the job's id.

        again: as in `submit`. Raises InvalidJob, naming every bad field.
        """
        command = await self._submission(spec, job_id, again=again, waits=False)
        await self._publish(command, fresh_message_id(command), code)
        return command.job_id

    async def _submission(self, spec: JobSpec, job_id: str, *, again: bool | None, waits: bool = True) -> SubmitJob:
        name = job_id or fresh_job_id(spec)
        command = SubmitJob(job_id=name, tenant=self.tenant, spec=spec, sender_waits=waits)
        check(command)
        earlier = (await self.state()).job(job_id) if job_id and again is not False else None
        if earlier is None:
            return command
        command = _beside(earlier, codec.checked(command), by_any=again is True)
        self.on_earlier(earlier, bool(command.replaces))
        return command

    async def _until_seen_without(self, job_id: str, identity: str) -> None:
        """Wait until what this client reads has a later job of the id than this one; but not for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SEEN_WITHIN_S), contextlib.aclosing(self.states()) as states:
                async for state in states:
                    if (job := state.job(job_id)) is None or job.identity != identity:
                        return

    async def continued(self, source: str) -> ContinuedJob:
        """The checkpoint that a text such as "han" or "han@40" names: the newest of a job, or that of an iteration.

        Raises UnknownJob, InvalidJob.
        """
        job_id, is_exact, iteration = source.partition("@")
        job = await self.job(job_id)
        if is_exact and not (iteration.isdecimal() and 0 < int(iteration) <= job.saved_iteration):
            newest = (
                f"its newest checkpoint is of iteration {job.saved_iteration}" if job.saved_iteration else "it has none"
            )
            raise InvalidJob(f"continues: {job_id} has no checkpoint of iteration {iteration}: {newest}")
        if why := job.why_not_continued:
            raise InvalidJob(f"continues: {why}")
        return ContinuedJob(
            job_id=job_id,
            identity=job.identity,
            iteration=int(iteration) if is_exact else job.saved_iteration,
            is_exact=bool(is_exact),
            earlier=job.earlier_writers,
        )

    async def seal(self, secrets: Mapping[str, str]) -> tuple[SealedSecret, ...]:
        """Values by name as only the pool's executors can read them, in jobs of this tenant. Raises KeysUnusable."""
        key = (await self.state()).config.secrets_key
        if not key:
            raise KeysUnusable(
                "no_secrets_key",
                f"pool {self._pool} takes no secrets: its configuration has no secrets_key; `eflow keys secrets` makes "
                "one, and says what its operator does with it",
            )
        from elasticflow.shared.runtime.process.secret_sealing import seal  # with a library that nothing else needs

        return tuple(seal(key, self.tenant, name, value) for name, value in secrets.items())

    async def quote(self, spec: JobSpec, *, timeout: Duration = REPLY_TIMEOUT_S) -> DeadlineQuoted:
        """The earliest deadline that admission would promise now. Submits no job. timeout: of each replica's reply.

        Raises InvalidJob, NoAdmission, NotQuoted.
        """
        request = QuoteDeadline(tenant=self.tenant, spec=spec)
        check(request)
        timeout_s = seconds_of(timeout)
        return await ask_quote(self._bus, self._pool, request, timeout_s=timeout_s, now_s=self.now_s())

    async def cancel(
        self, job_id: str, *, reason: str = "", timeout: Duration = REPLY_TIMEOUT_S
    ) -> JobCancelled | CancelRejected:
        """Stop a job and free its GPUs. Raises Undecided."""
        command = CancelJob(job_id=job_id, tenant=self.tenant, reason=reason)
        return await self._reply_to(command, (JobCancelled, CancelRejected), timeout)

    async def reserve(
        self, spec: JobSpec, *, duration: Duration, job_id: str = "", timeout: Duration = REPLY_TIMEOUT_S
    ) -> QuoteReserved | QuoteRejected:
        """Quote a deadline and reserve what it needs for `duration`. A submission under the reservation's job_id
        that requires no more is admitted. Raises InvalidJob, Undecided."""
        job_id = job_id or fresh_job_id(spec)
        command = ReserveQuote(job_id=job_id, tenant=self.tenant, spec=spec, reserve_s=seconds_of(duration))
        return await self._reply_to(command, (QuoteReserved, QuoteRejected), timeout)

    async def quote_reservation(self, job_id: str) -> QuoteReservation:
        """The quote that is reserved now under this id. Raises UnknownQuote."""
        quotes = (await self.state()).quotes_at(self.now_s())
        quote = next((quote for quote in quotes if quote.job_id == job_id), None)
        if quote is None:
            raise UnknownQuote(job_id, tuple(each.job_id for each in quotes))
        return quote

    async def scale(
        self,
        job_id: str,
        *,
        min_gpus: int | None = None,
        max_gpus: int | None = None,
        without: str = "",
        until: Moment | None = None,
        duration: Duration | None = None,
        timeout: Duration = REPLY_TIMEOUT_S,
    ) -> GpuLimitsSet | GpuLimitsRejected:
        """Set an operator's GPU limits on a job, in place of the previous ones.

        without: what the job gives up, such as "node-1:3", "node-1:0,3 node-2:1" or the whole "node-1".
        until, duration: when the limits end; without both they never expire.
        Admission rejects limits that break a promise. Raises InvalidJob, Undecided.
        """
        if min_gpus is None and max_gpus is None and not without:
            raise InvalidJob("min_gpus, max_gpus, without: give one of them, or release the job")
        gpus, nodes = _given_up(without)
        command = SetGpuLimits(
            job_id=job_id,
            tenant=self.tenant,
            min_gpus=min_gpus,
            max_gpus=max_gpus,
            until_s=self._instant_s(until, duration, "until, duration"),
            without_gpus=gpus,
            without_nodes=nodes,
        )
        return await self._reply_to(command, (GpuLimitsSet, GpuLimitsRejected), timeout)

    async def release(
        self, job_id: str, *, timeout: Duration = REPLY_TIMEOUT_S
    ) -> GpuLimitsCleared | GpuLimitsRejected:
        """Clear a job's GPU limits. Raises Undecided."""
        command = SetGpuLimits(job_id=job_id, tenant=self.tenant)
        return await self._reply_to(command, (GpuLimitsCleared, GpuLimitsRejected), timeout)

    async def checkpoint(self, job_id: str, *, timeout: Duration = CHECKPOINT_TIMEOUT_S) -> CheckpointReply:
        """Write a checkpoint of a job now; return once it is complete on the disk. If the job does not train,
        return its newest checkpoint. Raises Undecided."""
        command = RequestCheckpoint(job_id=job_id, tenant=self.tenant)
        return await self._reply_to(command, get_args(CheckpointReply), timeout)

    async def amend(
        self,
        job_id: str,
        *,
        deadline: Moment | None = None,
        within: Duration | None = None,
        max_iterations: int | None = None,
        timeout: Duration = REPLY_TIMEOUT_S,
    ) -> JobAmended | AmendRejected:
        """Change the deadline or the iterations of a job if all promises can still be kept, else change nothing.

        deadline, within: one of them at most; `within` counts from now. Raises InvalidJob, Undecided.
        """
        command = AmendJob(
            job_id=job_id,
            tenant=self.tenant,
            deadline_s=self._instant_s(deadline, within, "deadline, within"),
            max_iterations=max_iterations,
        )
        return await self._reply_to(command, (JobAmended, AmendRejected), timeout)

    def _instant_s(self, moment: Moment | None, duration: Duration | None, names: str) -> float | None:
        """Seconds since 1970; None if neither is given. Raises InvalidJob."""
        if moment is not None and duration is not None:
            raise InvalidJob(f"{names}: give one of them at most")
        if duration is not None:
            return self.now_s() + seconds_of(duration)
        return None if moment is None else timestamp_of(moment)


# --- One call of the asynchronous client from synchronous code -----------------------------------------

T = TypeVar("T")


def _beside(job: Job, command: SubmitJob, *, by_any: bool) -> SubmitJob:
    """The command as it is sent while this job has its id: it takes that from an ended one of its tenant, or repeats
    its submission (docs/adr/0114).

    by_any: it takes the id whatever it submits, and however the job ended. Another deadline makes no other job of a
    sweep: all count from the time of the command. Nor does a newer checkpoint, of a job that continues its own name.
    """
    if job.live or job.tenant != command.tenant:
        return command
    repeated, submitted = command, job.submitted_spec or job.spec
    if command.spec.sweep and submitted is not None:
        repeated = replace(repeated, spec=replace(repeated.spec, deadline_s=submitted.deadline_s))
    before, wanted = submitted.continues if submitted is not None else None, command.spec.continues
    if before is not None and wanted is not None and before.job_id == wanted.job_id == job.job_id:
        repeated = replace(repeated, spec=replace(repeated.spec, continues=before))
    has_no_result = job.phase in (Phase.FAILED, Phase.CANCELLED, Phase.PROFILED)
    has_no_result |= job.phase is Phase.REJECTED and bool(job.replaces)  # others lose their ids without a word
    is_repeated = is_submission_of(repeated, job)
    if by_any or (has_no_result and not is_repeated):
        return replace(command, replaces=job.identity)
    return repeated if is_repeated else command


def _given_up(without: str) -> tuple[tuple[GpuId, ...], tuple[str, ...]]:
    """The GPUs and the nodes of a text such as "node-1:0,3 node-2". Raises InvalidJob."""
    words = without.split()
    try:
        gpus = gpus_of_words(" ".join(word for word in words if ":" in word))
    except ValueError as error:
        raise InvalidJob(f"without: {error}") from None
    return gpus, tuple(word for word in words if ":" not in word)


def with_client(endpoint: Endpoint, tenant: str, call: Callable[[Client], Awaitable[T]]) -> T:
    """Connect to the pool, make the call, and disconnect."""

    async def connected() -> T:
        async with Client.connect(endpoint, tenant=tenant) as client:
            return await call(client)

    return blocking(connected())


def blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end, in another thread if this one runs an event loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
