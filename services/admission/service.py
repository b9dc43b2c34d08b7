"""Admission on the bus: the shared work queue of submissions, and quotes by request."""

from collections.abc import Callable
from typing import Any

from elasticflow.services.admission.commands.quote import quote
from elasticflow.services.admission.policy import POLICY, with_cache
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.commands import QuoteDeadline
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.messages.envelope.codec import Message, Undecodable
from elasticflow.shared.messages.events import MessageRejected
from elasticflow.shared.messages.limits import MAX_SUBMISSION_BYTES
from elasticflow.shared.runtime.bus.contract import Bus, Subscription
from elasticflow.shared.runtime.process.clock import Clock
from elasticflow.shared.runtime.service.answer_sender import AnswerSender
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.run_service import Process, host_policy
from elasticflow.shared.scheduling.compiled.warm_up import warm_up
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.pool import PoolState


async def serve(process: Process) -> None:
    """Decide on submissions and answer quotes, until cancelled."""

    cache = PlanningCache()

    async def quotes(host: Host[PoolState]) -> None:
        def answer(data: bytes) -> Message:
            if not host.is_fit:
                return MessageRejected(problems=(f"admission {host.unwell()}",))
            return _answer(data, host.folded, process.clock.now_s(), cache)

        pool = process.settings.pool
        await host.ready.wait()
        requests = await process.bus.subscribe(subjects.quote(pool), queue=POLICY.service)
        await answer_quotes(process.bus, pool, requests, answer, process.clock, process.log)

    await host_policy(process, with_cache(cache), takes_commands=True, prepare=warm_up, beside=quotes)


async def answer_quotes(
    bus: Bus, pool: str, requests: Subscription, answer: Callable[[bytes], Message], clock: Clock, log: Any
) -> None:
    """Answer each request for a quote, until cancelled."""
    answers = AnswerSender(bus, pool, log)
    async for request in requests:
        data = codec.encode(answer(request.data), id="quote", recorded_at_s=clock.now_s())
        try:
            await answers.send(request.reply, data)
        except Retry as error:
            log.warning("quote not answered", error=str(error))


def _answer(data: bytes, state: PoolState, now_s: float, cache: PlanningCache) -> Message:
    try:
        question = codec.decode(data, max_bytes=MAX_SUBMISSION_BYTES).message
    except Undecodable as error:
        return MessageRejected(problems=error.problems)
    if not isinstance(question, QuoteDeadline):
        return MessageRejected(problems=(f"type: {type(question).__name__} is no QuoteDeadline",))
    return quote(state, question, now_s, cache)
