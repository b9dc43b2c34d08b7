"""A command is dead-lettered after replicas died of it, not after deliveries without a decision."""

import asyncio
from typing import Any

import pytest

from elasticflow.services.admission.policy import replies, replies_again
from elasticflow.shared.errors import Unavailable
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import Command
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.service.command_queue import ACK_WAIT_S, MAX_ATTEMPTS, Attempts
from elasticflow.shared.state.policy import UserReplies, planner
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.pipeline.invariants import violations
from elasticflow.simulator.replay.recorded_ledger import read_entries
from testbed.histories import NOW_S, spec
from tests.support.one_pool import POOL, FaultyBus, OnePool, Store

NUM_DELIVERIES = 10
LONG_S = 60.0


class Died(Exception):
    """Stands for the death of a process."""


def admit(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[events.AdmissionEvent, ...]:
    if any(command.job_id == "deadly" for command in commands):
        raise Died
    return tuple(
        events.JobAdmitted(
            job_id=command.job_id,
            tenant="lab",
            spec=spec(),
            deadline_s=NOW_S + 1e6,
            minimum_satisfactory_share=(),
            gpu_seconds=0.0,
            at_s=now_s,
        )
        for command in commands
    )


ADMISSION = planner("admission", admit, user_replies=UserReplies(replies=replies, replies_again=replies_again))


@pytest.fixture
def pool() -> Any:
    pool = OnePool()
    yield pool
    pool.loop.finish()


async def unavailable(bus: FaultyBus, store: Store) -> int:
    raise Unavailable("", "for a test")


def num_dead_letters(pool: OnePool) -> int:
    return len(pool.broker.stream(streams.dead_letter_stream(POOL)).messages)


def test_deliveries_without_a_decision_do_not_count(pool: OnePool) -> None:
    """Replicas were paused, or NATS was away."""
    pool.submit("a")
    bus = pool.bus()
    queue = pool.loop.run_until_complete(bus.work(POOL, "admission", ack_wait_s=ACK_WAIT_S))
    for number in range(NUM_DELIVERIES):
        (item,) = pool.loop.run_until_complete(queue.pull(1, 2 * ACK_WAIT_S))
        assert item.num_delivered == number + 1
    pool.start(pool.bus(), ADMISSION)
    pool.run_for(LONG_S)
    assert pool.decided == [("JobAdmitted", "a")]
    assert (num_dead_letters(pool), pool.num_unacknowledged) == (0, 0)


def test_decisions_that_cannot_be_appended_do_not_count(pool: OnePool) -> None:
    """The replica lives: its decision is only postponed."""
    pool.submit("a")
    queue = pool.loop.run_until_complete(pool.bus().work(POOL, "admission", ack_wait_s=ACK_WAIT_S))
    for _ in range(3):
        pool.loop.run_until_complete(queue.pull(1, 2 * ACK_WAIT_S))
    pool.start(pool.bus(*[unavailable] * 20), ADMISSION)
    pool.run_for(LONG_S)
    assert pool.decided == [("JobAdmitted", "a")]
    assert (num_dead_letters(pool), pool.num_unacknowledged) == (0, 0)


def test_decisions_of_others_while_an_attempt_is_counted_come_first(pool: OnePool) -> None:
    pool.submit("a")
    queue = pool.loop.run_until_complete(pool.bus().work(POOL, "admission", ack_wait_s=ACK_WAIT_S))
    for _ in range(3):
        pool.loop.run_until_complete(queue.pull(1, 2 * ACK_WAIT_S))
    bus = pool.bus()
    put_value = bus.put_value

    async def put_value_and_lose_a_race(*args: Any, **options: Any) -> int:
        pool.decide(events.JobCancelled(job_id="unknown", reason="", at_s=NOW_S))
        revision = await put_value(*args, **options)
        await asyncio.sleep(1.0)  # the host folds the other decision meanwhile
        return revision

    bus.put_value = put_value_and_lose_a_race
    pool.start(bus, ADMISSION)
    pool.run_for(LONG_S)
    assert ("JobAdmitted", "a") in pool.decided
    found = violations(read_entries(pool.broker.ledger(POOL).messages.values()))
    assert [violation for violation in found if "operator" not in violation] == []  # those of the test name no basis


def test_a_command_of_which_replicas_die_is_dead_lettered(pool: OnePool) -> None:
    pool.submit("deadly")
    pool.submit("a")
    num_deaths = 0
    while pool.num_unacknowledged:
        pool.start(pool.bus(), ADMISSION, f"replica{num_deaths}")
        try:
            pool.run_for(LONG_S)
        except* Died:
            num_deaths += 1
        assert num_deaths < 20
    assert MAX_ATTEMPTS <= num_deaths <= MAX_ATTEMPTS + 2
    assert num_dead_letters(pool) == 1
    assert pool.decided == [("JobAdmitted", "a")]


@pytest.mark.parametrize("damaged", [b"", b"\xff", b"-7", b"9" * 5000, "\u0967".encode()])
def test_a_damaged_number_of_attempts_counts_as_none(pool: OnePool, damaged: bytes) -> None:
    """No message ends a service."""
    position = events.QueuePosition(sequence=1, stored_at_s=NOW_S)
    bus = pool.bus()

    async def begin_twice() -> list[int]:
        await bus.put_value(streams.state_bucket(POOL), f"attempts.1-{int(NOW_S)}", damaged)
        return [await Attempts(bus, POOL).begin(position) for _ in range(2)]

    assert pool.loop.run_until_complete(begin_twice()) == [0, 1]
