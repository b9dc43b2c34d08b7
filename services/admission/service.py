"""Admission on the bus: the shared work queue of submissions, and quotes by request."""

from elasticflow.services.admission.policy import POLICY, with_cache
from elasticflow.services.admission.quote import QuoteRequests, quote
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.codec import Message, Undecodable
from elasticflow.shared.messages.commands import QuoteDeadline
from elasticflow.shared.messages.events import MessageRejected
from elasticflow.shared.messages.limits import MAX_SUBMISSION_BYTES
from elasticflow.shared.runtime.bus.contract import until_available
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.run_service import Process, host_policy
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.scheduling.warm_up import warm_up
from elasticflow.shared.state.pool import PoolState


async def serve(process: Process) -> None:
    """Decide on submissions and answer quotes, until cancelled."""

    cache = PlanningCache()

    async def quotes(host: Host[PoolState]) -> None:
        def answer(data: bytes, tenant: str) -> Message:
            return _answer(data, tenant, host.folded, process.clock.now_s(), cache)

        pool = process.settings.pool
        await host.ready.wait()
        requests = await until_available(
            lambda: process.bus.subscribe(subjects.quote("*", pool), queue=POLICY.service), process.log, "quotes"
        )
        await QuoteRequests(process.bus, pool, answer, process.clock, process.log, host.why_not_now).run(requests)

    await host_policy(process, with_cache(cache), prepare=warm_up, beside=quotes)


def _answer(data: bytes, tenant: str, state: PoolState, now_s: float, cache: PlanningCache) -> Message:
    try:
        question = codec.decode(data, max_bytes=MAX_SUBMISSION_BYTES).message
    except Undecodable as error:
        return MessageRejected(problems=error.problems)
    if not isinstance(question, QuoteDeadline):
        return MessageRejected(problems=(f"type: {type(question).__name__} is no QuoteDeadline",))
    if question.tenant != tenant:
        problem = f"tenant: {question.tenant!r} may not publish on the subject of {tenant!r}"
        return MessageRejected(problems=(problem,))
    return quote(state, question, now_s, cache)
