"""Admission on the bus: the shared work queue of submissions, and quotes by request."""

from elasticflow.services.admission.commands.quote_and_reserve import quote
from elasticflow.services.admission.policy import POLICY, with_cache
from elasticflow.shared.errors import Retry
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.commands import QuoteDeadline
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.messages.envelope.codec import Message, Undecodable
from elasticflow.shared.messages.events import MessageRejected
from elasticflow.shared.messages.limits import MAX_SUBMISSION_BYTES
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.run_service import Process, host_policy
from elasticflow.shared.scheduling.compiled.warm_up import warm_up
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.pool import PoolState


async def serve(process: Process) -> None:
    """Decide on submissions and answer quotes, until cancelled."""

    cache = PlanningCache()

    async def answer_quotes(host: Host[PoolState]) -> None:
        pool = process.settings.pool
        await host.ready.wait()
        questions = await process.bus.subscribe(subjects.quote(pool), queue=POLICY.service)
        async for question in questions:
            if host.is_fit:
                answer = _answer(question.data, host.folded, process.clock.now_s(), cache)
            else:
                answer = MessageRejected(problems=(f"admission {host.unwell()}",))
            data = codec.encode(answer, id="quote", recorded_at_s=process.clock.now_s())
            try:
                if question.reply:
                    await process.bus.publish(question.reply, data)
            except Retry as error:
                process.log.warning("quote not answered", error=str(error))

    await host_policy(process, with_cache(cache), takes_commands=True, prepare=warm_up, beside=answer_quotes)


def _answer(data: bytes, state: PoolState, now_s: float, cache: PlanningCache) -> Message:
    try:
        question = codec.decode(data, max_bytes=MAX_SUBMISSION_BYTES).message
    except Undecodable as error:
        return MessageRejected(problems=error.problems)
    if not isinstance(question, QuoteDeadline):
        return MessageRejected(problems=(f"type: {type(question).__name__} is no QuoteDeadline",))
    return quote(state, question, now_s, cache)
