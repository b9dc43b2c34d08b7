"""A pool as its users see it, from Python: submit, quote, hold, amend, scale, cancel, look, wait.

A view is the folded ledger: nothing is asked of a service that the ledger can say. The calls for scripts and
notebooks, without `await`, are in `elasticflow/calls.py`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TypeVar, get_args

from elasticflow.answers import Checkpointing, Decision, Measured
from elasticflow.asking import Asking, check, fresh_job_id
from elasticflow.endpoint import DEFAULT_TENANT, Endpoint, find_endpoint
from elasticflow.errors import NoAdmission, Undecided, UnknownPool, UnknownQuote
from elasticflow.job import InvalidJob
from elasticflow.packaging import Package
from elasticflow.patience import patiently
from shared.errors import NoResponder
from shared.messages import codec, subjects
from shared.messages.commands import (
    AmendJob,
    CancelJob,
    CheckpointJob,
    HoldQuote,
    ProfileJob,
    QuoteDeadline,
    ScaleJob,
    SubmitJob,
)
from shared.messages.events import (
    AmendRefused,
    BoundEnded,
    CancelRefused,
    DeadlineQuoted,
    JobAmended,
    JobCancelled,
    JobScaled,
    MessageRefused,
    ProfileRequested,
    QuoteHeld,
    QuoteRefused,
    ScaleRefused,
)
from shared.messages.job import JobSpec
from shared.messages.pool_state import HeldQuote
from shared.runtime import streams
from shared.runtime.clock import Clock, SystemClock, fresh_id
from shared.runtime.nats_bus import connect_nats
from shared.runtime.nats_url import masked

ANSWER_TIMEOUT_S = 30.0
CHECKPOINT_TIMEOUT_S = 300.0  # large ones take their time

SomeDecision = TypeVar("SomeDecision", bound=Decision | Measured)


class Client(Asking):
    """One pool, over one connection; made by `Client.connect`."""

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls, endpoint: Endpoint | None = None, *, tenant: str = "", clock: Clock | None = None
    ) -> "AsyncIterator[Client]":
        """Connect to a pool, by default the one of NATS_URL or of the nearest `.eflow`.

        Raises NoPoolHere, UnknownPool, Unavailable, BadCredentials.
        """
        endpoint = endpoint or find_endpoint()
        bus = await connect_nats(endpoint.nats_url, name="eflow")
        try:
            if not await patiently(bus.pool_exists, endpoint.pool):
                raise UnknownPool(endpoint.pool, masked(endpoint.nats_url), await bus.pools())
            yield cls(bus, endpoint, tenant or DEFAULT_TENANT, clock or SystemClock())
        finally:
            await bus.close()

    # -- wishes ------------------------------------------------------------------------------------------

    async def submit(
        self,
        spec: JobSpec,
        *,
        job_id: str = "",
        code: Package | None = None,
        on_undecided: Callable[[ProfileRequested], None] | None = None,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> Decision:
        """Hand a job in and wait for the decision, through its pre-run if its speed is not known yet.

        The same job_id with the same spec may come any number of times: the answer is the same.
        timeout_s: for the first sign of an answer. Raises InvalidJob, Undecided.
        """
        wish = self._submission(spec, job_id)
        return await self._decided(wish, get_args(Decision), code, on_undecided, timeout_s)

    async def profile(
        self,
        spec: JobSpec,
        *,
        code: Package | None = None,
        on_undecided: Callable[[ProfileRequested], None] | None = None,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> Measured:
        """How fast it trains on each number of GPUs in its range, measured in a pre-run where nobody knows; nothing is
        submitted. Raises InvalidJob, Undecided."""
        wish = ProfileJob(job_id=f"profile-{fresh_job_id(spec)}"[:64], tenant=self.tenant, spec=spec)
        check(wish)
        return await self._decided(wish, get_args(Measured), code, on_undecided, timeout_s)

    async def _decided(
        self,
        wish: SubmitJob | ProfileJob,
        kinds: tuple[type[SomeDecision], ...],
        code: Package | None,
        on_undecided: Callable[[ProfileRequested], None] | None,
        timeout_s: float,
    ) -> SomeDecision:
        """Hand it in, and wait for one of these; timeout_s: for the first sign of an answer."""
        async with self._listening(wish.job_id) as answers:
            await self._hand_in(wish, code)
            patience = asyncio.timeout(timeout_s)
            try:
                async with patience:
                    while True:
                        match await answers.next():
                            case ProfileRequested() as undecided:
                                if on_undecided and patience.when() is not None:  # both sides tell of it
                                    on_undecided(undecided)
                                patience.reschedule(None)
                            case MessageRefused(problems=problems):
                                raise InvalidJob(*problems)
                            case decision if isinstance(decision, kinds) and _is_about(decision, wish.spec):
                                return decision
                            case _:
                                pass
            except TimeoutError:
                raise Undecided(wish.job_id, timeout_s) from None

    async def post(self, spec: JobSpec, *, job_id: str = "", code: Package | None = None) -> str:
        """Hand a job in without waiting for anybody; its id. Raises InvalidJob, naming every bad field."""
        wish = self._submission(spec, job_id)
        await self._hand_in(wish, code)
        return wish.job_id

    def _submission(self, spec: JobSpec, job_id: str) -> SubmitJob:
        wish = SubmitJob(job_id=job_id or fresh_job_id(spec), tenant=self.tenant, spec=spec)
        check(wish)
        return wish

    async def _hand_in(self, wish: SubmitJob | ProfileJob, code: Package | None) -> None:
        if code is not None:
            bucket = streams.code_bucket(self._pool)
            await patiently(self._bus.put_object, bucket, code.code_digest, code.archive)
        await self._publish(wish)

    async def quote(self, spec: JobSpec, *, timeout_s: float = ANSWER_TIMEOUT_S) -> DeadlineQuoted:
        """The earliest deadline that would be promised now; nothing is submitted. Raises InvalidJob."""
        question = QuoteDeadline(tenant=self.tenant, spec=spec)
        check(question)
        data = codec.encode(question, id=f"quote-{fresh_id()}", recorded_at_s=self.now_s())
        try:
            answer = await self._bus.request(subjects.quote(self._pool), data, timeout_s)
        except NoResponder:
            raise NoAdmission(self._pool) from None
        match codec.decode(answer).message:
            case DeadlineQuoted() as quoted:
                return quoted
            case MessageRefused(problems=problems):
                raise InvalidJob(*problems)
            case other:
                raise codec.Undecodable(f"{type(other).__name__} is no answer to a quote")

    async def cancel(
        self, job_id: str, *, reason: str = "", timeout_s: float = ANSWER_TIMEOUT_S
    ) -> JobCancelled | CancelRefused:
        """Stop a job and free its GPUs. Raises Undecided."""
        wish = CancelJob(job_id=job_id, tenant=self.tenant, reason=reason)
        return await self._answered(wish, (JobCancelled, CancelRefused), timeout_s)

    async def hold(
        self, spec: JobSpec, *, hold_s: float, job_id: str = "", timeout_s: float = ANSWER_TIMEOUT_S
    ) -> QuoteHeld | QuoteRefused:
        """A quote, and what keeps it reserved for so long. It is taken by a submission under its job_id that asks
        for no more. Raises InvalidJob, Undecided."""
        job_id = job_id or fresh_job_id(spec)
        wish = HoldQuote(job_id=job_id, tenant=self.tenant, spec=spec, hold_s=hold_s)
        return await self._answered(wish, (QuoteHeld, QuoteRefused), timeout_s)

    async def held_quote(self, job_id: str) -> HeldQuote:
        """The quote that is held now under this name. Raises UnknownQuote."""
        quotes = (await self.state()).quotes_at(self.now_s())
        quote = next((quote for quote in quotes if quote.job_id == job_id), None)
        if quote is None:
            raise UnknownQuote(job_id)
        return quote

    async def scale(
        self,
        job_id: str,
        *,
        min_gpus: int | None = None,
        max_gpus: int | None = None,
        until_s: float | None = None,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> JobScaled | ScaleRefused:
        """As its operator, let a job hold at least or at most so many GPUs, until until_s if that is given; never at
        the cost of a promise. This takes the place of the bound before. Raises InvalidJob, Undecided."""
        wish = ScaleJob(
            job_id=job_id, tenant=self.tenant, min_gpus=min_gpus, max_gpus=max_gpus, until_s=until_s
        )
        if min_gpus is None and max_gpus is None:
            raise InvalidJob("min_gpus, max_gpus: give one of them at least, or release the job")
        return await self._answered(wish, (JobScaled, ScaleRefused), timeout_s)

    async def release(self, job_id: str, *, timeout_s: float = ANSWER_TIMEOUT_S) -> BoundEnded | ScaleRefused:
        """Let the system choose a job's number of GPUs again. Raises Undecided."""
        wish = ScaleJob(job_id=job_id, tenant=self.tenant)
        return await self._answered(wish, (BoundEnded, ScaleRefused), timeout_s)

    async def checkpoint(self, job_id: str, *, timeout_s: float = CHECKPOINT_TIMEOUT_S) -> Checkpointing:
        """Keep the state of a job now; answered when that is whole on the disk. Of a job that does not train, which is
        newest. Raises Undecided."""
        wish = CheckpointJob(job_id=job_id, tenant=self.tenant)
        return await self._answered(wish, get_args(Checkpointing), timeout_s)

    async def amend(
        self,
        job_id: str,
        *,
        deadline_s: float | None = None,
        max_iterations: int | None = None,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> JobAmended | AmendRefused:
        """Another deadline, or other iterations, if that can be kept beside all other promises; else the job stays
        as it is. Raises InvalidJob, Undecided."""
        wish = AmendJob(
            job_id=job_id, tenant=self.tenant, deadline_s=deadline_s, max_iterations=max_iterations
        )
        return await self._answered(wish, (JobAmended, AmendRefused), timeout_s)


def _is_about(decision: Decision | Measured, spec: JobSpec) -> bool:
    """Not a decision on somebody else's wish under the same name."""
    return getattr(decision, "spec", None) in (None, spec)
