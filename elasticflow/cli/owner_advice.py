"""Whose job or padding load a command meant, if it is of another tenant than the command."""

from dataclasses import replace
from typing import TypeVar

from elasticflow.client.client import Client
from elasticflow.shared.messages.events import (
    AmendRejected,
    CancelLoadRejected,
    CancelRejected,
    CheckpointRejected,
    GpuLimitsRejected,
)

_REJECTIONS = (AmendRejected, CancelRejected, CancelLoadRejected, CheckpointRejected, GpuLimitsRejected)
Answer = TypeVar("Answer")


async def naming_owner(client: Client, name: str, answer: Answer) -> Answer:
    """The answer to a command about this job or load, with the tenant that it belongs to, if that is why it is unknown.

    Admission tells a tenant nothing of the others. A client that reads the whole ledger may know it all the same.
    """
    if not isinstance(answer, _REJECTIONS):
        return answer
    unknown = answer.explanation.partition(";")[0]
    if not unknown.endswith((" has no such job", " has no such load")):
        return answer
    state = await client.state()
    meant = state.loads.get(name) if unknown.endswith("load") else state.job(name)
    if meant is None or meant.tenant == client.tenant:
        return answer
    return replace(answer, explanation=f"{unknown}; {owner_in_words(unknown.split()[-1], meant.tenant)}")


def owner_in_words(kind: str, tenant: str) -> str:
    """kind: job or load."""
    return f"it is a {kind} of tenant {tenant}: add --tenant {tenant}"
