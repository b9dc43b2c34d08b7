"""Given a ledger that somebody floods, the projection goes on, and its log stays small."""

import asyncio
from typing import Any

import pytest

from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.runtime.service.ledger_projection import LedgerProjection
from elasticflow.simulator.baselines.policy_catalogue import planners
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from testbed.histories import NOW_S
from tests.support.service_contexts import service_context

POOL = "p"
NUMBER = 50


class Clock:
    """It stands still: all messages are of one minute."""

    def now_s(self) -> float:
        return NOW_S

    async def sleep_until(self, at_s: float) -> None:
        raise AssertionError("nothing here waits for an instant")


def forged(number: int) -> tuple[str, bytes]:
    """A decision that rests on a history that nobody has read."""
    decision = PlanDecided(service="admission", based_on=number, now_s=NOW_S, chain="0" * 32, events=())
    return subjects.plan(POOL), codec.encode(decision, id=f"forged-{number}", recorded_at_s=NOW_S)


def junk(number: int) -> tuple[str, bytes]:
    return subjects.job(POOL, f"job-{number}"), b"junk"


@pytest.mark.parametrize(("message", "kind"), [(junk, "LedgerMessageSkipped"), (forged, "LedgerChanged")])
async def test_a_flood_of_bad_messages_in_the_ledger_is_one_line_and_their_number(message: Any, kind: str) -> None:
    lines = list[tuple[str, dict[str, Any]]]()

    class Log(SilentLog):
        def error(self, event: str, **keys: Any) -> None:
            lines.append((event, keys))

    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    for number in range(NUMBER):
        subject, data = message(number)
        await bus.append(subject, data, message_id=f"bad-{number}")
    context = service_context(bus, POOL, Clock(), log=Log())
    projection = LedgerProjection(context, planners()["admission"], lambda: None, lambda _: None)
    following = asyncio.create_task(projection.follow())
    await projection.up_to(NUMBER)
    assert [event for event, _ in lines] == [kind]
    following.cancel()
    await asyncio.wait({following})
    assert [(event, keys["kind"], keys["number"]) for event, keys in lines[1:]] == [
        ("RefusalsCounted", kind, NUMBER - 1)
    ]
