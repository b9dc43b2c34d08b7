"""Decisions that change the schedules of all promised jobs fit into one message, or the command is dead-lettered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from elasticflow.services.admission import policy as admission
from elasticflow.services.allocator import policy as allocator
from elasticflow.shared.messages import codec, events, subjects
from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import JobAdmitted, MessageRejected, PlanDecided
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.messages.limits import MAX_MESSAGE_BYTES
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.ledger_encoding import ledger_message
from elasticflow.shared.state.job import Phase
from elasticflow.shared.state.policy import Policy, UserReplies, planner
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.replay.recorded_ledger import read_entries
from elasticflow.simulator.replay.retaken_decisions import verify
from testbed.histories import NOW_S, spec, submit
from tests.support.service_contexts import service_context
from tests.support.virtual_clock import VirtualClock

POOL = "large"
NUM_PROMISED, NUM_SEGMENTS = 1_000, 32  # as large as the decisions of 20,000 jobs with one segment each
PROMISED = tuple(f"promised-{number:04}" for number in range(NUM_PROMISED))
SEGMENT = (NOW_S, NOW_S + 60.0, 1.0)
CLOCK = VirtualClock(NOW_S)


def admitted(job_id: str, **changes: Any) -> JobAdmitted:
    values = {"deadline_s": NOW_S + 1e6, "minimum_satisfactory_share": (NOW_S, NOW_S + 60.0, 1.0)} | changes
    return JobAdmitted(job_id=job_id, tenant="lab", spec=spec(), gpu_seconds=60.0, at_s=NOW_S, **values)


def moves_all(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[JobAdmitted, ...]:
    """Admits each job, each time with a new schedule for all promised jobs; with many segments for job greedy."""
    return tuple(
        admitted(
            command.job_id,
            replanned=dict.fromkeys(PROMISED, SEGMENT * (NUM_SEGMENTS * (10 if command.job_id == "greedy" else 1))),
        )
        for command in commands
        if state.job(command.job_id) is None
    )


async def large_pool() -> MemoryBus:
    bus = MemoryBus(clock=CLOCK)
    await bus.ensure_pool(POOL)
    plan = tuple(admitted(job_id) for job_id in PROMISED)
    decision = PlanDecided(service="operator", based_on=0, now_s=NOW_S, events=plan)
    data = codec.encode(decision, id="given", recorded_at_s=NOW_S)
    await bus.append(subjects.plan(POOL), data, message_id="given")
    return bus


def hosted(bus: MemoryBus, policy: Policy[PoolState]) -> Host[PoolState]:
    return Host(
        service_context(bus, POOL, CLOCK),
        policy,
    )


@asynccontextmanager
async def running(host: Host[PoolState]) -> AsyncIterator[asyncio.Task[None]]:
    """The host, for the time of a test; what fails in it fails the test."""
    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(host.run())
        yield task
        task.cancel()


async def stored_after(bus: MemoryBus, sequence: int, wanted: int) -> list[LedgerRecord]:
    """The next messages of the ledger, as many as wanted."""
    found: list[LedgerRecord] = []
    async for batch in bus.follow(POOL, after_sequence=sequence):
        found += batch
        if len(found) >= wanted:
            break
    return found


async def send_submission(bus: MemoryBus, job_id: str) -> None:
    data = codec.encode(submit(job_id), id=job_id, recorded_at_s=NOW_S)
    await bus.append(subjects.submit("lab", POOL), data, message_id=job_id)


async def test_fewer_commands_are_decided_at_once_where_each_changes_all_schedules() -> None:
    bus = await large_pool()
    names = [f"new-{number}" for number in range(8)]
    for name in names:
        await send_submission(bus, name)
    host = hosted(
        bus,
        planner("admission", moves_all, shorten=admission.shorten, user_replies=UserReplies(replies=admission.replies)),
    )
    answers = await bus.subscribe("ef.answer.>")
    async with running(host):
        answered = {codec.decode((await anext(answers)).data).message.job_id for _ in names}
    assert answered == set(names)
    decisions = [ledger_message(stored.subject, stored.data) for stored in await stored_after(bus, 1, 2)]
    admissions = [[event.job_id for event in decision.events] for decision in decisions]
    assert [job_id for said in admissions for job_id in said] == names  # each once, in order
    assert max(map(len, admissions)) > 1  # still as many as fit
    assert all(host.folded.job(name).phase is Phase.ADMITTED for name in names)


async def test_a_command_with_too_large_a_decision_is_dead_lettered_and_the_next_one_is_decided() -> None:
    bus = await large_pool()
    answers = await bus.subscribe("ef.answer.>")
    for name in ("greedy", "modest"):
        await send_submission(bus, name)
    async with running(
        hosted(
            bus,
            planner(
                "admission", moves_all, shorten=admission.shorten, user_replies=UserReplies(replies=admission.replies)
            ),
        )
    ):
        refusal = codec.decode((await anext(answers)).data).message
        assert isinstance(refusal, MessageRejected)
        assert "larger than one message" in refusal.problems[0]
        assert f"{MAX_MESSAGE_BYTES - 4096} fit" in refusal.problems[0]
        answer = codec.decode((await anext(answers)).data).message
    assert isinstance(answer, JobAdmitted)
    assert answer.job_id == "modest"
    (dead_letter,) = bus.broker.stream(streams.dead_letter_stream(POOL)).messages.values()
    assert codec.id_in(dead_letter.data) == "greedy"


def replans_all(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[Any, ...]:
    if state.allocation_based_on:
        return ()
    schedule = SEGMENT * (10 * NUM_SEGMENTS)
    decided = events.AllocationDecided(
        num_gpus_by_job={PROMISED[0]: 1},
        valid_until_s=None,
        planned=dict.fromkeys(PROMISED, schedule),
        at_s=now_s,
    )
    return (decided,)


async def test_an_allocation_omits_schedules_that_do_not_fit_and_can_be_verified() -> None:
    bus = await large_pool()
    policy = planner("allocator", replans_all, shorten=allocator.shorten)
    async with running(hosted(bus, policy)):
        (stored,) = await stored_after(bus, 1, 1)
    decision = ledger_message(stored.subject, stored.data)
    assert isinstance(decision, PlanDecided)
    assert decision.events == (
        events.AllocationDecided(num_gpus_by_job={PROMISED[0]: 1}, valid_until_s=None, planned={}, at_s=NOW_S),
    )
    records = await stored_after(bus, 0, 2)
    assert verify(read_entries(records), {"allocator": policy}).difference is None
    poorer = replace(decision, events=(replace(decision.events[0], num_gpus_by_job={}),))
    records[1] = replace(records[1], data=codec.encode(poorer, id="id", recorded_at_s=NOW_S))
    assert verify(read_entries(records), {"allocator": policy}).difference is not None


def admits_when_profiled(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[Any, ...]:
    waiting = sorted(job.job_id for job in state.live_jobs.values() if job.phase is Phase.PROFILING)
    return tuple(admitted(job_id, replanned=moves_all(state, (submit("x"),), 0.0)[0].replanned) for job_id in waiting)


async def test_events_without_a_command_take_as_many_decisions_as_they_need() -> None:
    bus = await large_pool()
    names = [f"profiled-{number}" for number in range(5)]
    waiting = tuple(
        events.ProfileRequested(job_id=name, tenant="lab", spec=spec(), deadline_s=None, at_s=NOW_S) for name in names
    )
    decision = PlanDecided(service="operator", based_on=1, now_s=NOW_S, events=waiting)
    await bus.append(subjects.plan(POOL), codec.encode(decision, id="w", recorded_at_s=NOW_S), message_id="w")
    host = hosted(
        bus,
        planner(
            "admission",
            admits_when_profiled,
            shorten=admission.shorten,
            user_replies=UserReplies(replies=admission.replies),
        ),
    )
    async with running(host):
        found = await stored_after(bus, 2, 2)
    said = [[e.job_id for e in ledger_message(s.subject, s.data).events] for s in found]
    assert [job_id for some in said for job_id in some] == names


async def test_commands_are_decided_beside_a_decision_that_no_message_can_hold() -> None:
    """Otherwise an operator could not even cancel the jobs that make it too large."""

    def admits_one_too_much(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[Any, ...]:
        answers = tuple(admitted(command.job_id) for command in commands if state.job(command.job_id) is None)
        return (*answers, *moves_all(state, (submit("greedy"),), now_s))

    bus = await large_pool()
    names = ["a", "b", "c"]
    for name in names:
        await send_submission(bus, name)
    answers = await bus.subscribe("ef.answer.>")
    policy = planner(
        "admission",
        admits_one_too_much,
        shorten=admission.shorten,
        user_replies=UserReplies(is_answer=admission.is_answer, replies=admission.replies),
    )
    async with running(hosted(bus, policy)):
        replies = [codec.decode((await anext(answers)).data).message for _ in names]
    assert all(isinstance(reply, JobAdmitted) for reply in replies)
    assert {reply.job_id for reply in replies} == set(names)
