"""Asking admission for a quote: one replica after another, until one can tell."""

import asyncio

from elasticflow.errors import NoAdmission, NotQuoted
from elasticflow.sdk.job import InvalidJob
from elasticflow.shared.errors import NoResponder
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.commands import QuoteDeadline
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.messages.events import DeadlineQuoted, MessageRejected
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.process.clock import fresh_id

MAX_TRIES = 6  # NATS chooses the replica: with one of two that cannot answer, 1 request in 64 fails
_FIRST_WAIT_S = 0.05


async def ask_quote(bus: Bus, pool: str, request: QuoteDeadline, *, timeout_s: float, now_s: float) -> DeadlineQuoted:
    """timeout_s: of each attempt. Raises InvalidJob, NoAdmission, NotQuoted, RequestTimeout."""
    data = codec.encode(request, id=f"quote-{fresh_id()}", recorded_at_s=now_s)
    wait_s, reason = _FIRST_WAIT_S, ""
    for attempt in range(MAX_TRIES):
        if attempt:
            await asyncio.sleep(wait_s)
            wait_s *= 2
        try:
            reply = await bus.request(subjects.quote(request.tenant, pool), data, timeout_s)
        except NoResponder:
            raise NoAdmission(pool) from None
        match codec.decode(reply).message:
            case DeadlineQuoted() as quoted:
                return quoted
            case MessageRejected(problems=problems, ask_again=True):
                reason = "; ".join(problems)
            case MessageRejected(problems=problems):
                raise InvalidJob(*problems)
            case other:
                raise codec.Undecodable(f"{type(other).__name__} is not a reply to QuoteDeadline")
    raise NotQuoted(pool, reason)
