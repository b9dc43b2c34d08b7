"""Answers on subjects that tenants chose: each goes to an inbox or to an answer subject of that tenant, or nowhere."""

from typing import Any

from elasticflow.shared.messages import subjects
from elasticflow.shared.runtime.bus.contract import Bus

MAX_WARNINGS = 100  # one for each subject; a flood of subjects must not flood the log
MAX_LOGGED_LENGTH = 300


class AnswerSender:
    """Sends the answers of one service of one pool."""

    def __init__(self, bus: Bus, pool: str, log: Any) -> None:
        self._bus, self._pool, self._log = bus, pool, log
        self._warned_of: set[str] = set()

    async def send(self, tenant: str, subject: str, data: bytes) -> None:
        """Publish an answer to this tenant. subject: "" if it awaits none. Raises what the bus raises."""
        if not subject:
            return
        if subjects.may_be_answered(tenant, self._pool, subject):
            await self._bus.publish(subject, data)
            return
        shown = subject[:MAX_LOGGED_LENGTH]
        if shown not in self._warned_of and len(self._warned_of) < MAX_WARNINGS:
            self._warned_of.add(shown)
            why = f"no inbox (_INBOX.>) and no subject of {subjects.answer(tenant, self._pool, '*')}"
            self._log.warning("answer not sent", subject=shown, why=why)
