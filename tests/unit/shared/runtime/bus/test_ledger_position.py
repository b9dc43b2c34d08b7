"""Whose word counts on the end of a ledger, and when it has lost messages that were read."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from elasticflow.shared.errors import LedgerBroken, LedgerTruncated, Unavailable
from elasticflow.shared.runtime.bus.nats.jetstream_api import ledger_end
from elasticflow.shared.runtime.bus.nats.stream_follower import CONFIRMED_AFTER_S, LedgerPosition
from elasticflow.simulator.virtual_time import VirtualTimeLoop

POOL = "p"
NS = 1_000_000_000


def replica(name: str, active_s: float = 0.5, *, current: bool = True, **more: Any) -> dict[str, Any]:
    return {"name": name, "current": current, "active": int(active_s * NS), **more}


def info(end: int, cluster: dict[str, Any] | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = {"state": {"first_seq": 1, "last_seq": end}, "ts": "2026-01-01T00:00:00+00:00"}
    return answer if cluster is None else answer | {"cluster": cluster}


LED: dict[str, Any] = {"name": "c", "leader": "a", "replicas": [replica("b"), replica("c")]}
LEADERLESS: dict[str, Any] = {"name": "c", "replicas": [replica("a", 8.0), replica("c", 0.0, current=False)]}


class Servers:
    """Of which each question gets one of these answers, in turn."""

    url = "nats://h"

    def __init__(self, *answers: dict[str, Any]) -> None:
        self._answers = list(answers)

    async def api(self, call: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        assert call == ("STREAM.INFO.EF_LEDGER_p" if body is None else "STREAM.MSG.GET.EF_LEDGER_p")
        return self._answers.pop(0)


def position(*answers: dict[str, Any]) -> LedgerPosition:
    servers: Any = Servers(*answers)
    return LedgerPosition(servers, POOL)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """On virtual time."""
    loop = VirtualTimeLoop()
    loop.spawn(scenario, "scenario")
    loop.settle()
    loop.advance_to(60.0)
    loop.finish()


@pytest.mark.parametrize(
    "cluster",
    [
        LEADERLESS,
        {"name": "c", "leader": "a", "replicas": [replica("b", 3.5), replica("c", 3.6)]},  # cut off from both
        {"name": "c", "leader": "a", "replicas": [replica("b", 0.0, current=False), replica("c", 9.0)]},
        {"name": "c", "leader": "a", "replicas": [replica("b", offline=True), replica("c", current=False)]},
    ],
    ids=["knows-no-leader", "cut-off", "never-met-the-others", "others-are-gone"],
)
async def test_only_a_leader_tells_the_end_of_the_ledger(cluster: dict[str, Any]) -> None:
    servers: Any = Servers(info(139, cluster))
    with pytest.raises(Unavailable):
        await ledger_end(servers, "EF_LEDGER_p")


@pytest.mark.parametrize(
    "cluster",
    [
        None,
        {"name": "c", "leader": "a"},
        LED,
        {"name": "c", "leader": "a", "replicas": [replica("b"), replica("c", 0.0, current=False, offline=True)]},
    ],
    ids=["single-server", "not-replicated", "all-there", "one-is-gone"],
)
async def test_a_leader_with_a_majority_tells_it(cluster: dict[str, Any] | None) -> None:
    servers: Any = Servers(info(139, cluster))
    assert (await ledger_end(servers, "EF_LEDGER_p")).sequence == 139


def test_a_reader_waits_for_servers_that_lag_behind() -> None:
    """Seed 14 of the nemesis: the ledger seemed to end at 139, of which 151 messages were read."""

    async def scenario() -> None:
        reader = position(info(139, LED), info(139, LEADERLESS), info(139, LED), info(151, LED))
        assert not await reader.is_held(151)
        await asyncio.sleep(CONFIRMED_AFTER_S)
        with pytest.raises(Unavailable):
            await reader.is_held(151)
        assert not await reader.is_held(151), "its leader may be another one"
        assert await reader.is_held(151)

    run(scenario())


def test_a_leader_whose_ledger_stays_shorter_has_lost_messages() -> None:
    async def scenario() -> None:
        reader = position(info(139, LED), info(139, LED))
        assert not await reader.is_held(151)
        await asyncio.sleep(CONFIRMED_AFTER_S)
        with pytest.raises(LedgerTruncated) as lost:
            await reader.is_held(151)
        assert (lost.value.read, lost.value.end) == (151, 139)
        assert "NATS has lost messages that it had acknowledged" in str(lost.value)

    run(scenario())


async def test_without_replicas_a_shorter_ledger_has_lost_messages_at_once() -> None:
    with pytest.raises(LedgerTruncated):
        await position(info(139)).is_held(151)


# --- messages that are counted and not delivered --------------------------------------------------------

NO_MESSAGE = {"error": {"code": 404, "err_code": 10037, "description": "no message found"}}


def found(sequence: int) -> dict[str, Any]:
    return {"message": {"seq": sequence}}


@pytest.mark.parametrize(("answer", "next_readable"), [(NO_MESSAGE, 68), (found(66), 66)], ids=["at-the-end", "gap"])
async def test_a_single_server_that_cannot_read_the_next_message_has_damaged_data(
    answer: dict[str, Any], next_readable: int
) -> None:
    with pytest.raises(LedgerBroken) as broken:
        await position(info(67), answer).check_readable(60)
    assert (broken.value.expected, broken.value.found) == (61, next_readable)
    assert f"lacks messages 61 to {next_readable - 1}: " in str(broken.value)


async def test_the_next_message_may_just_be_on_its_way() -> None:
    await position(info(67), found(61)).check_readable(60)


async def test_at_the_end_nothing_is_asked_again() -> None:
    reader = position(info(60))
    for _ in range(3):
        await reader.check_readable(60)


async def test_a_server_that_cannot_be_asked_is_no_evidence() -> None:
    refused = {"error": {"code": 503, "err_code": 10008, "description": "JetStream system temporarily unavailable"}}
    with pytest.raises(Unavailable):
        await position(info(67), refused).check_readable(60)


def test_a_new_leader_gets_time_to_apply_what_it_has_stored() -> None:
    async def scenario() -> None:
        reader = position(info(67, LED), NO_MESSAGE, info(67, LED), found(61), *[info(67, LED), NO_MESSAGE] * 2)
        await reader.check_readable(60)
        await asyncio.sleep(CONFIRMED_AFTER_S)
        await reader.check_readable(60)
        await reader.check_readable(60)
        await asyncio.sleep(CONFIRMED_AFTER_S)
        with pytest.raises(LedgerBroken):
            await reader.check_readable(60)

    run(scenario())


async def test_a_node_believes_no_single_server_of_several() -> None:
    await position(info(67, LED)).check_readable(60, directly=True)
