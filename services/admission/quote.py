"""A quote is the earliest deadline that would be promised now. It reserves nothing."""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from elasticflow.services.admission.rejection import no_deadline, problems_of, why_no_type, why_unquotable
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.commands import QuoteDeadline, owned
from elasticflow.shared.messages.events import DeadlineQuoted, MessageRejected
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.messages.limits import MAX_SUBMISSION_BYTES
from elasticflow.shared.runtime.bus.contract import Bus, Message, Subscription
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.process.logs import RefusalLog
from elasticflow.shared.runtime.service.command_queue import AnswerSender
from elasticflow.shared.runtime.service.turns import Turns
from elasticflow.shared.scheduling.admission.planned_pool import flat
from elasticflow.shared.scheduling.jobs.job_table import gpu_seconds
from elasticflow.shared.scheduling.jobs.scheduler_view import arriving_job, known_curve, promised_deadline_s
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.fold.profiles import with_own_curves, with_profile
from elasticflow.shared.state.gpu_types import part_of_type, possible_types, shown_type, spec_on, type_name
from elasticflow.shared.state.pool import PoolState


def quote(
    state: PoolState, question: QuoteDeadline, now_s: float, cache: PlanningCache | None = None
) -> DeadlineQuoted:
    """The earliest deadline that this job would be promised now, on any GPU type, or why there is none."""
    question, cache = owned(question), PlanningCache() if cache is None else cache
    state = with_own_curves(state, question.spec)
    possible = possible_types(state, question.spec)
    if state.num_gpus and not possible:
        return DeadlineQuoted(earliest_deadline_s=None, explanation=why_no_type(state, question.spec), at_s=now_s)
    answers = {
        gpu_type: _quote_on_type(
            part_of_type(state, gpu_type),
            replace(question, spec=spec_on(state, question.spec, gpu_type)),
            now_s,
            cache.of_type(gpu_type),
        )
        for gpu_type in possible or [""]
    }
    best = min(answers.values(), key=lambda answer: answer.earliest_deadline_s or math.inf)
    if len(answers) == 1 or best.earliest_deadline_s is not None:
        return best
    why = (f"on {type_name(state, gpu_type)}: {answer.explanation}" for gpu_type, answer in answers.items())
    return replace(best, explanation="; ".join(why))


def _quote_on_type(state: PoolState, question: QuoteDeadline, now_s: float, cache: PlanningCache) -> DeadlineQuoted:
    spec, state = question.spec, with_profile(state, question.spec)
    session = AdmissionSession.start(state, now_s, cache)
    problems = problems_of(state, replace(spec, job_class=JobClass.BEST_EFFORT), now_s)
    curve = known_curve(state, spec, curves=session.cache.curves)
    if problems or curve is None:
        why = "; ".join(problems) or why_unquotable(state, spec)
        return DeadlineQuoted(earliest_deadline_s=None, explanation=why, num_gpus=state.num_gpus, at_s=now_s)
    job = arriving_job(state, "quote", spec, curve, math.inf)
    session = session.expecting_another().with_pricing().with_search()
    planned_s = session.earliest_deadline_s(job)
    if planned_s is None:
        why = no_deadline(state, job, session.promisable_gpus, now_s)
        return DeadlineQuoted(earliest_deadline_s=None, explanation=why, num_gpus=state.num_gpus, at_s=now_s)
    proposal = session.admission_search.propose(replace(job, deadline_s=planned_s))
    return DeadlineQuoted(
        earliest_deadline_s=promised_deadline_s(state, planned_s),
        gpu_seconds=gpu_seconds(proposal.schedule) if proposal else None,
        gpu_type=shown_type(state, spec.gpu_type),
        schedule=flat(proposal.schedule) if proposal else (),
        num_gpus=state.num_gpus,
        at_s=now_s,
    )


# --- quote requests ------------------------------------------------------------------------------------
# Requests for quotes: those of each tenant in turn, at a limited rate, and never for long before decisions.

QUOTES_PER_S = 10.0  # of one tenant, in the long run
MAX_AT_ONCE = 20  # of one tenant, after a pause
MAX_REFUSALS_PER_S = 200  # of one tenant: clients that wait for each answer ask no faster
MAX_WAITING = 1_000  # of all tenants
MAX_WAITING_BYTES = 16 * 1024 * 1024
MAX_TENANTS = 10_000  # whose rates are known; more are names that one client makes up
YIELD_EVERY = 64  # requests that are received at once
LEAST_QUOTE_S = 0.001  # that a quote counts
REST = 1.0  # after a quote, decisions get this many times as long as it took

Answer = Callable[[bytes, str], codec.Message]
WhyNot = Callable[[], Awaitable[str]]


@dataclass(slots=True)
class _Tenant:
    """num_allowed: quotes that it may ask at measured_at_s. num_refused: in the second refused_in since 1970."""

    measured_at_s: float
    num_allowed: float = MAX_AT_ONCE
    refused_in: int = 0
    num_refused: int = 0
    waiting: deque[Message] = field(default_factory=deque[Message])


class QuoteRequests:
    """answer: of the data of a request and the tenant that may send it. why_not: why none can be given now, or ""."""

    def __init__(
        self, bus: Bus, pool: str, answer: Answer, clock: Clock, log: Any, why_not: WhyNot | None = None
    ) -> None:
        self._answer, self._why_not, self._clock = answer, why_not or _always, clock
        self._answers, self._refusals = AnswerSender(bus, pool, log), RefusalLog(log.warning)
        self._tenants: dict[str, _Tenant] = {}
        self._turns = Turns()
        self._waiting: dict[str, None] = {}  # tenants with requests
        self._num_waiting = self._num_waiting_bytes = 0
        self._news = asyncio.Event()

    async def run(self, requests: Subscription) -> None:
        """Answer each request, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._answer_in_turn(), name="quotes")
                num_received = 0
                async for request in requests:
                    await self._receive(request)
                    num_received += 1
                    if num_received % YIELD_EVERY == 0:
                        await asyncio.sleep(0)  # a flood must not keep decisions waiting
        finally:
            self._refusals.close()

    async def _receive(self, request: Message) -> None:
        name = subjects.sender(request.subject)
        tenant = self._tenant(name)
        if len(request.data) > MAX_SUBMISSION_BYTES:
            await self._refuse(
                request, tenant, f"a request has {MAX_SUBMISSION_BYTES:,} bytes at most", ask_again=False
            )
            return
        is_full = self._num_waiting >= MAX_WAITING or self._num_waiting_bytes + len(request.data) > MAX_WAITING_BYTES
        if is_full or tenant.num_allowed < 1.0:
            problem = f"tenant {name!r} asks for more than {QUOTES_PER_S:g} quotes a second: ask again in a second"
            await self._refuse(request, tenant, problem)
            return
        tenant.num_allowed -= 1.0
        self._waiting[name] = None
        tenant.waiting.append(request)
        self._num_waiting += 1
        self._num_waiting_bytes += len(request.data)
        self._news.set()

    async def _refuse(self, request: Message, tenant: _Tenant, problem: str, *, ask_again: bool = True) -> None:
        """Further requests of the same second are dropped, because each answer to a flood delays decisions."""
        second = int(tenant.measured_at_s)
        if tenant.refused_in != second:
            tenant.refused_in, tenant.num_refused = second, 0
        tenant.num_refused += 1
        if tenant.num_refused > MAX_REFUSALS_PER_S:
            return
        await self._send(request, MessageRejected(problems=(problem,), ask_again=ask_again))

    def _tenant(self, name: str) -> _Tenant:
        now_s = self._clock.now_s()
        if name not in self._tenants and len(self._tenants) >= MAX_TENANTS:
            self._tenants = {known: tenant for known, tenant in self._tenants.items() if tenant.waiting}
        tenant = self._tenants.setdefault(name, _Tenant(now_s))
        earned = max(now_s - tenant.measured_at_s, 0.0) * QUOTES_PER_S
        tenant.num_allowed, tenant.measured_at_s = min(tenant.num_allowed + earned, MAX_AT_ONCE), now_s
        return tenant

    async def _answer_in_turn(self) -> None:
        while True:
            await self._news.wait()
            self._refusals.write_counts(self._clock.now_s())
            name, request = self._next()
            if why_not := await self._why_not():
                await self._send(request, MessageRejected(problems=(f"admission {why_not}",), ask_again=True))
                continue
            began_s = monotonic()
            await self._send(request, self._answer(request.data, name))
            took_s = monotonic() - began_s
            self._turns.had([(name, max(took_s, LEAST_QUOTE_S))])
            await asyncio.sleep(REST * took_s)

    def _next(self) -> tuple[str, Message]:
        """The next request, and the tenant that asks."""
        name = self._turns.in_turns(list(self._waiting), tenant_of=str, work_s=lambda _: 0.0)[0]
        waiting = self._tenants[name].waiting
        request = waiting.popleft()
        self._num_waiting -= 1
        self._num_waiting_bytes -= len(request.data)
        if not waiting:
            del self._waiting[name]
        if not self._waiting:
            self._news.clear()
        return name, request

    async def _send(self, request: Message, message: codec.Message) -> None:
        data = codec.encode(message, id="quote", recorded_at_s=self._clock.now_s())
        try:
            await self._answers.send(subjects.sender(request.subject), request.reply, data)
        except Retry as error:
            tenant, now_s = subjects.sender(request.subject), self._clock.now_s()
            self._refusals.write("quote not answered", tenant, now_s, error=str(error))


async def _always() -> str:
    return ""
