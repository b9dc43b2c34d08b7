"""Admission on the bus: the shared work queue of submissions, and quotes by request."""

from services.admission.policy import POLICY, quote
from shared.errors import Retry
from shared.messages import codec, subjects
from shared.messages.codec import Message, Undecodable
from shared.messages.commands import QuoteDeadline
from shared.messages.events import MessageRefused
from shared.messages.limits import MAX_SUBMISSION_BYTES
from shared.messages.pool_state import PoolState
from shared.runtime.host import Host
from shared.runtime.service import Process, host_policy
from shared.scheduling.warm_up import warm_up


async def serve(process: Process) -> None:
    """Decide on submissions and answer quotes, until cancelled."""

    async def answer_quotes(host: Host[PoolState]) -> None:
        pool = process.settings.pool
        await host.ready.wait()
        questions = await process.bus.subscribe(subjects.quote(pool), queue=POLICY.service)
        async for question in questions:
            answer = _answer(question.data, host.folded, process.clock.now_s())
            data = codec.encode(answer, id="quote", recorded_at_s=process.clock.now_s())
            try:
                if question.reply:
                    await process.bus.publish(question.reply, data)
            except Retry as error:
                process.log.warning("quote not answered", error=str(error))

    await host_policy(process, POLICY, takes_commands=True, prepare=warm_up, beside=answer_quotes)


def _answer(data: bytes, state: PoolState, now_s: float) -> Message:
    try:
        question = codec.decode(data, max_bytes=MAX_SUBMISSION_BYTES).message
    except Undecodable as error:
        return MessageRefused(problems=error.problems)
    if not isinstance(question, QuoteDeadline):
        return MessageRefused(problems=(f"type: {type(question).__name__} is no QuoteDeadline",))
    return quote(state, question, now_s)
