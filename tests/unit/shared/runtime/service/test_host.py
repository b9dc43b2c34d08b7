"""The service host where the bus or the process fails: lost races, missing acknowledgements, snapshots, pauses."""

import asyncio
import hashlib
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from elasticflow.services.admission.policy import replies, replies_again
from elasticflow.shared.errors import CannotStart, MaybeStored, WrongExpectedSequence
from elasticflow.shared.messages import codec, events, subjects
from elasticflow.shared.messages.codec import READER_VERSION
from elasticflow.shared.messages.commands import Command
from elasticflow.shared.messages.events import JobAdmitted, PlanDecided, PlanEvent
from elasticflow.shared.messages.gpus import GpuId
from elasticflow.shared.messages.limits import MAX_MESSAGE_BYTES
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import LedgerEnd
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.ledger_encoding import MAX_HEADER_BYTES
from elasticflow.shared.runtime.service.snapshot_store import Snapshot
from elasticflow.shared.state import snapshot_encoding
from elasticflow.shared.state.job import Phase
from elasticflow.shared.state.policy import UserReplies, planner
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.memory_link import DelayedLink
from elasticflow.simulator.replay.recorded_ledger import folded, read_entries
from elasticflow.simulator.virtual_time import VirtualClock, VirtualTimeLoop
from testbed.histories import NOW_S, spec
from tests.support.one_pool import PLAN, POOL, Fault, FaultyBus, OnePool, Store

LONG_S = 120.0  # more than all timeouts, retries and leases of a test


def admitted(job_id: str) -> JobAdmitted:
    return JobAdmitted(
        job_id=job_id,
        tenant="lab",
        spec=spec(),
        deadline_s=NOW_S + 1e6,
        minimum_satisfactory_share=(),
        gpu_seconds=0.0,
        at_s=NOW_S,
    )


def admit_one(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[events.AdmissionEvent, ...]:
    """The first job is admitted, each other one rejected: the decision depends on what was decided before."""
    decided: list[events.AdmissionEvent] = []
    for command in commands:
        if state.job(command.job_id) is not None:
            continue
        if state.live_jobs or decided:
            rejected = events.JobRejected(
                job_id=command.job_id, tenant="lab", spec=spec(), reason="invalid", explanation="", at_s=now_s
            )
            decided.append(rejected)
        else:
            decided.append(admitted(command.job_id))
    return tuple(decided)


def admit_waiting(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[PlanEvent, ...]:
    waiting = sorted(job.job_id for job in state.live_jobs.values() if job.phase is Phase.PROFILING)
    return tuple(admitted(job_id) for job_id in waiting)


ADMISSION = planner("admission", admit_one, user_replies=UserReplies(replies=replies, replies_again=replies_again))
ALLOCATOR = planner("allocator", admit_waiting)


@pytest.fixture
def pool() -> Any:
    pool = OnePool()
    yield pool
    pool.loop.finish()


# -- a lost race


def test_a_host_that_loses_the_race_decides_again_on_the_other_decision(pool: OnePool) -> None:
    async def lose(bus: FaultyBus, store: Store) -> int:
        pool.decide(admitted("other"))
        return await store()

    pool.submit("a")
    pool.start(pool.bus(lose), ADMISSION)
    pool.run_for(LONG_S)
    assert pool.decided == [("JobAdmitted", "other"), ("JobRejected", "a")]
    assert [decision.based_on for decision in pool.decisions] == [0, 1]
    assert (pool.count("conflicts"), pool.count("decisions"), pool.num_unacknowledged) == (1, 1, 0)


def test_a_host_gives_up_a_decision_whose_plan_changes_meanwhile(pool: OnePool) -> None:
    num_steps: list[int] = []

    def in_steps(state: PoolState, commands: tuple[Command, ...], now_s: float) -> Generator[None, None, Any]:
        if commands and not pool.decided:
            pool.decide(admitted("other"))
        num_steps.append(0)
        for _ in commands * 50:
            num_steps[-1] += 1
            yield
        return admit_one(state, commands, now_s)

    pool.submit("a", "b")
    policy = replace(ADMISSION, decide_in_steps=in_steps)
    pool.start(MemoryBus(pool.broker, clock=VirtualClock(pool.loop)), policy)
    pool.run_for(LONG_S)
    assert pool.decided == [("JobAdmitted", "other"), ("JobRejected", "a"), ("JobRejected", "b")]
    assert [decision.based_on for decision in pool.decisions] == [0, 1]
    assert (pool.count("conflicts"), pool.count("decisions"), pool.num_unacknowledged) == (1, 1, 0)
    given_up, finished = filter(None, num_steps)
    assert (given_up < 20, finished) == (True, 100)


# -- an append without an acknowledgement


async def committed(bus: FaultyBus, store: Store) -> int:
    await store()
    raise MaybeStored(PLAN, "")


async def not_committed(bus: FaultyBus, store: Store) -> int:
    raise MaybeStored(PLAN, "")


async def committed_after_the_look(bus: FaultyBus, store: Store) -> int:
    bus.after_look.append(store)
    raise MaybeStored(PLAN, "")


@pytest.mark.parametrize(
    ("fault", "num_appended", "num_conflicts"),
    [(committed, 1, 0), (not_committed, 1, 0), (committed_after_the_look, 0, 1)],
)
def test_an_append_that_may_be_stored_is_stored_once(
    fault: Fault, num_appended: int, num_conflicts: int, pool: OnePool
) -> None:
    answers = pool.loop.run_until_complete(pool.bus().subscribe("ef.answer.>"))
    pool.submit("a")
    pool.start(pool.bus(fault), ADMISSION)
    pool.run_for(LONG_S)
    assert pool.decided == [("JobAdmitted", "a")]
    assert pool.num_unacknowledged == 0
    assert (pool.count("decisions"), pool.count("conflicts")) == (num_appended, num_conflicts)
    reply = codec.decode(pool.loop.run_until_complete(anext(answers)).data).message
    assert isinstance(reply, JobAdmitted), "the user gets the decision in each case"


def test_an_append_that_arrives_after_its_repetition_is_dropped(pool: OnePool) -> None:
    held: list[Store] = []

    async def hold(bus: FaultyBus, store: Store) -> int:
        held.append(store)
        raise MaybeStored(PLAN, "")

    pool.submit("a")
    pool.start(pool.bus(hold), ADMISSION)
    pool.run_for(LONG_S)
    with pytest.raises(WrongExpectedSequence):
        pool.loop.run_until_complete(held[0]())
    pool.run_for(LONG_S)
    assert pool.decided == [("JobAdmitted", "a")]


# -- a plan that the host cannot read


def of_newer_version() -> bytes:
    decision = PlanDecided(service="placement", based_on=0, now_s=NOW_S, events=())
    envelope = msgpack.unpackb(codec.encode(decision, id="newer", recorded_at_s=NOW_S))
    return msgpack.packb(envelope | {"version": PlanDecided.VERSION + 1})


@pytest.mark.parametrize("data", [b"unreadable", of_newer_version()])
def test_a_planner_takes_no_decisions_after_an_unreadable_one_until_the_operator_skips_it(
    data: bytes, pool: OnePool
) -> None:
    async def lose(bus: FaultyBus, store: Store) -> int:
        pool.store(PLAN, data)
        return await store()

    pool.submit("a")
    replica = pool.start(pool.bus(lose), ADMISSION)
    pool.run_for(LONG_S)
    pool.decide(admitted("other"))
    pool.run_for(LONG_S)
    assert pool.decided == [("JobAdmitted", "other")]
    assert (pool.count("conflicts"), pool.num_unacknowledged) == (1, 1)
    assert replica.host.folded.sequence == 2, "it folds what follows"
    assert "--skip-plan-up-to 1" in str(replica.host.unwell())
    assert pool.log.lines.count("takes no decisions") == 1
    assert pool.blocked("unreadable_plan") == 1

    pool.configure(skip_plan_up_to=1)
    pool.run_for(LONG_S)
    assert pool.decided[-1] == ("JobRejected", "a")
    assert replica.host.unwell() is None
    assert pool.log.lines.count("decides again") == 1
    assert pool.blocked("unreadable_plan") == 0
    assert pool.num_unacknowledged == 0


def test_a_skip_covers_no_later_message(pool: OnePool) -> None:
    pool.configure(skip_plan_up_to=100)
    pool.store(PLAN, b"unreadable")
    pool.submit("a")
    replica = pool.start(pool.bus(), ADMISSION)
    pool.run_for(LONG_S)
    assert "--skip-plan-up-to 2" in str(replica.host.unwell())
    assert pool.num_unacknowledged == 1


def test_an_unreadable_decision_that_arrives_while_the_planner_asks_for_the_time_stops_it(pool: OnePool) -> None:
    class RacingBus(FaultyBus):
        num_asked = 0

        async def ledger_end(self, pool_name: str) -> LedgerEnd:
            end = await super().ledger_end(pool_name)
            self.num_asked += 1
            if self.num_asked == 2:  # the first is the host that catches up
                pool.store(PLAN, b"unreadable")
                await asyncio.sleep(1.0)
            return end

    bus = RacingBus(pool.broker, clock=VirtualClock(pool.loop), delayed=True)
    bus.append_faults, bus.after_look = [], []
    replica = pool.start(bus, ADMISSION)
    pool.run_for(LONG_S)
    pool.submit("a")
    pool.run_for(LONG_S)
    assert (pool.decided, pool.num_unacknowledged) == ([], 1)
    assert "--skip-plan-up-to 1" in str(replica.host.unwell())


def test_a_planner_takes_no_decisions_on_a_changed_ledger_until_the_operator_skips_it(pool: OnePool) -> None:
    pool.store(subjects.job(POOL, "other"), b"first")
    pool.submit("a")
    first = pool.start(pool.bus(), ADMISSION, "first")
    pool.run_for(LONG_S)
    messages = pool.broker.ledger(POOL).messages
    messages[1] = replace(messages[1], data=b"forged")
    first.host.wake()
    pool.submit("b")
    pool.run_for(LONG_S)
    assert first.host.unwell() is None, "it has read the message before"

    second = pool.start(pool.bus(), ALLOCATOR, "second")
    pool.run_for(LONG_S)
    assert "messages 1 to 1 are not those on which the decision at 2 rests" in str(second.host.unwell())
    assert "--skip-plan-up-to 2" in str(second.host.unwell())
    assert "LedgerChanged" in pool.log.lines
    assert pool.blocked("changed_ledger") == 1
    assert second.host.snapshot() is None

    pool.configure(skip_plan_up_to=2)
    pool.run_for(LONG_S)
    assert second.host.unwell() is None
    assert second.host.snapshot() is not None


def test_a_snapshot_of_another_history_is_found_at_the_next_decision(pool: OnePool) -> None:
    pool.store(subjects.job(POOL, "other"), b"first")
    running = pool.start(pool.bus(), ADMISSION, "first")
    pool.run_for(LONG_S)
    store_snapshot(pool, snapshot(sequence=1))
    misled = pool.start(pool.bus(), ALLOCATOR, "second")
    pool.submit("a")
    pool.run_for(LONG_S)
    assert running.host.unwell() is None
    assert "the snapshot at 1, or messages" in str(misled.host.unwell())


def test_an_unreadable_event_stops_no_planner(pool: OnePool) -> None:
    pool.store(subjects.job(POOL, "other"), b"unreadable")
    pool.submit("a")
    replica = pool.start(pool.bus(), ADMISSION)
    pool.run_for(LONG_S)
    assert pool.decided == [("JobAdmitted", "a")]
    assert replica.host.unwell() is None


def test_a_service_that_does_not_plan_acts_after_an_unreadable_decision(pool: OnePool) -> None:
    """Without its executors and its monitor a pool would lose its jobs."""
    failure = events.JobFailed(job_id="a", generation=1, error="", at_s=NOW_S)

    def report(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[events.Event, ...]:
        return (failure,) if state.sequence == 1 else ()

    pool.store(PLAN, b"unreadable")
    replica = pool.start(pool.bus(), replace(ALLOCATOR, service="monitor", plans=False, decide=report))
    pool.run_for(LONG_S)
    assert [entry.message for entry in pool.entries][1:] == [failure]
    assert replica.host.unwell() is None


def test_a_service_older_than_the_pool_allows_does_not_start(pool: OnePool) -> None:
    pool.configure(minimum_reader_version=READER_VERSION + 1)
    pool.start(pool.bus(), ADMISSION)
    with pytest.raises(ExceptionGroup) as refused:
        pool.run_for(LONG_S)
    assert refused.group_contains(CannotStart, match=f"minimum_reader_version = {READER_VERSION + 1}")


def test_a_planner_that_the_pool_no_longer_allows_takes_no_decisions(pool: OnePool) -> None:
    replica = pool.start(pool.bus(), ADMISSION)
    pool.run_for(LONG_S)
    pool.configure(minimum_reader_version=READER_VERSION + 1)
    pool.submit("a")
    pool.run_for(LONG_S)
    assert pool.num_unacknowledged == 1
    assert "upgrade this service" in str(replica.host.unwell())
    pool.configure(minimum_reader_version=READER_VERSION)
    pool.run_for(LONG_S)
    assert pool.decided[-1] == ("JobAdmitted", "a")


# -- a decision that is larger than one message


def test_a_planner_says_that_a_decision_is_too_large_and_tries_again_ever_more_rarely(pool: OnePool) -> None:
    """No part of a placement is a placement: it is decided as a whole or not at all."""
    attempts: list[float] = []

    def place_too_much(state: PoolState, commands: tuple[Command, ...], now_s: float) -> tuple[PlanEvent, ...]:
        if state.live_jobs:
            return ()
        attempts.append(now_s)
        placed = events.PlacedJob(job_id="a", generation=1, gpus=(GpuId("n" * MAX_MESSAGE_BYTES, 0),))
        return (events.PlacementDecided(placements=(placed,), at_s=now_s),)

    replica = pool.start(pool.bus(), planner("placement", place_too_much, wake_at_s=lambda state: NOW_S))
    pool.run_for(LONG_S)
    assert not pool.decisions
    assert f"at most {MAX_MESSAGE_BYTES - MAX_HEADER_BYTES} fit" in str(replica.host.unwell())
    assert pool.log.lines.count("takes no decisions") == 1
    assert pool.blocked("decision_size") == 1
    assert 5 < len(attempts) < 30
    pool.decide(admitted("other"))
    pool.run_for(LONG_S)
    assert replica.host.unwell() is None
    assert pool.blocked("decision_size") == 0


def test_a_decision_that_the_server_does_not_accept_waits_for_a_larger_limit(pool: OnePool) -> None:
    pool.submit("a")
    limit, pool.broker.max_payload_bytes = pool.broker.max_payload_bytes, 100
    replica = pool.start(pool.bus(), ADMISSION)
    pool.run_for(LONG_S)
    assert "at most 100 fit" in str(replica.host.unwell())
    assert (pool.decided, pool.num_unacknowledged) == ([], 1)
    assert pool.blocked("decision_size") == 1
    pool.broker.max_payload_bytes = limit
    pool.run_for(LONG_S)
    assert (pool.decided, pool.num_unacknowledged) == ([("JobAdmitted", "a")], 0)
    assert replica.host.unwell() is None


# -- a clock that differs from the server's


class ShiftedClock(VirtualClock):
    """offset_s: how far it is ahead of the broker's."""

    def __init__(self, loop: VirtualTimeLoop, offset_s: float = 0.0) -> None:
        super().__init__(loop)
        self.offset_s = offset_s

    def now_s(self) -> float:
        return super().now_s() + self.offset_s

    async def sleep_until(self, at_s: float) -> None:
        await super().sleep_until(at_s - self.offset_s)


@pytest.mark.parametrize(("offset_s", "said"), [(5.0, "5.0 s ahead of"), (-5.0, "5.0 s behind")])
def test_a_planner_takes_no_decisions_while_its_clock_is_wrong(offset_s: float, said: str, pool: OnePool) -> None:
    clock = ShiftedClock(pool.loop, offset_s)
    pool.submit("a")
    replica = pool.start(pool.bus(), ADMISSION, clock=clock)
    pool.run_for(LONG_S)
    assert (pool.decided, pool.num_unacknowledged) == ([], 1)
    assert said in str(replica.host.unwell())
    assert pool.log.lines.count("takes no decisions") == 1
    assert pool.blocked("clock") == 1
    clock.offset_s = 0.0
    pool.run_for(LONG_S)
    assert (pool.decided, pool.num_unacknowledged) == ([("JobAdmitted", "a")], 0)
    assert replica.host.unwell() is None
    assert pool.blocked("clock") == 0


def test_a_replica_with_a_wrong_clock_leaves_its_commands_to_another_one(pool: OnePool) -> None:
    """It has pulled them already."""
    pool.submit("a")
    wrong = pool.start(pool.bus(), ADMISSION, "wrong", clock=ShiftedClock(pool.loop, 5.0))
    pool.run_for(1.0)
    assert "5.0 s ahead of" in str(wrong.host.unwell())
    pool.start(pool.bus(), ADMISSION, "right")
    pool.run_for(LONG_S)
    pool.submit("b")  # while the other one pulls, too
    pool.run_for(LONG_S)
    assert [job_id for _, job_id in pool.decided] == ["a", "b"]
    assert pool.num_unacknowledged == 0


def test_a_clock_within_the_slack_is_good_enough(pool: OnePool) -> None:
    pool.configure(deadline_slack_s=3.0)
    pool.submit("a")
    replica = pool.start(pool.bus(), ADMISSION, clock=ShiftedClock(pool.loop, 2.9))
    pool.run_for(LONG_S)
    assert replica.host.unwell() is None
    assert pool.decided[1:] == [("JobAdmitted", "a")]


def test_a_clock_that_was_set_wrong_while_the_planner_was_idle_leads_to_no_decision(pool: OnePool) -> None:
    clock = ShiftedClock(pool.loop)
    pool.start(pool.bus(), ADMISSION, clock=clock)
    pool.run_for(LONG_S)
    clock.offset_s = 3.0
    pool.submit("a")
    pool.run_for(LONG_S)
    assert (pool.decided, pool.num_unacknowledged) == ([], 1)


def test_a_planner_notices_by_its_own_decision_that_its_clock_was_set_wrong(pool: OnePool) -> None:
    clock = ShiftedClock(pool.loop)
    pool.submit("a")
    replica = pool.start(pool.bus(), ADMISSION, clock=clock)
    pool.run_for(1.0)
    clock.offset_s = 3.0
    pool.submit("b")
    pool.run_for(1.0)
    assert len(pool.decisions) == 2
    assert "3.0 s ahead of" in str(replica.host.unwell())
    pool.submit("c")
    pool.run_for(LONG_S)
    assert len(pool.decisions) == 2


def test_a_replica_with_a_wrong_clock_leaves_the_lease_to_another_one(pool: OnePool) -> None:
    clock = ShiftedClock(pool.loop)
    first = pool.start(pool.bus(), ALLOCATOR, "first", clock=clock)
    pool.run_for(LONG_S)
    second = pool.start(pool.bus(), ALLOCATOR, "second")
    pool.run_for(LONG_S)
    assert first.lease is not None
    assert second.lease is not None
    assert (first.lease.held, second.lease.held) == (True, False)
    clock.offset_s = 5.0
    requested = events.ProfileRequested(job_id="a", tenant="lab", spec=spec(), deadline_s=None, at_s=NOW_S)
    pool.decide(requested)
    pool.run_for(LONG_S)
    assert (first.lease.held, second.lease.held) == (False, True)
    assert pool.decided[1:] == [("JobAdmitted", "a")]
    assert "clock" in str(first.host.unwell())
    assert second.host.unwell() is None


def test_a_slow_answer_of_the_server_is_no_wrong_clock(pool: OnePool) -> None:
    class SlowBus(FaultyBus):
        async def ledger_end(self, pool: str) -> LedgerEnd:
            await asyncio.sleep(4.0)
            end = await super().ledger_end(pool)
            await asyncio.sleep(4.0)
            return end

    bus = SlowBus(pool.broker, clock=VirtualClock(pool.loop), delayed=True)
    bus.append_faults, bus.after_look = [], []
    pool.submit("a")
    replica = pool.start(bus, ADMISSION)
    pool.run_for(LONG_S)
    assert pool.decided == [("JobAdmitted", "a")]
    assert replica.host.unwell() is None


# -- snapshots


def snapshot(**state: int) -> bytes:
    """Of a pool without jobs."""
    return snapshot_store.encode(Snapshot(state=PoolState(**state), chain="00" * 16))


def store_snapshot(pool: OnePool, data: bytes, named: bytes | None = None) -> None:
    """named: the one that the ledger names, if it is another."""
    digest = hashlib.sha256(data if named is None else named).hexdigest()
    pool.broker.objects[streams.snapshot_bucket(POOL)][snapshot_store.saved_object(digest)] = data
    saved = events.SnapshotSaved(based_on=1, snapshot=digest, shape=snapshot_encoding.SHAPE, at_s=NOW_S)
    pool.store(subjects.snapshot(POOL, saved.shape), codec.encode(saved, id="saved", recorded_at_s=NOW_S))


GOOD = snapshot(sequence=1, plan_sequence=1)
FORGED = snapshot(sequence=1, plan_sequence=1, num_forgotten=1)
PARTIAL = snapshot(sequence=1, unreadable_plan_sequence=1)  # of a reader that was too old


@pytest.mark.parametrize("data", [b"garbage", GOOD[:-3], GOOD[3:], PARTIAL], ids=["garbage", "cut", "late", "partial"])
def test_a_damaged_snapshot_is_not_used_and_changes_no_decision(data: bytes, pool: OnePool) -> None:
    _is_not_used(pool, data)


def test_a_forged_snapshot_is_named_and_changes_no_decision(pool: OnePool) -> None:
    """Its chain is that of the ledger, so that no decision contradicts it; its digest is another."""
    _is_not_used(pool, FORGED, named=GOOD)
    assert any("is not the one that the ledger names" in error for error in pool.log.errors)


def _is_not_used(pool: OnePool, data: bytes, named: bytes | None = None) -> None:
    pool.decide(admitted("other"))
    store_snapshot(pool, data, named)
    replica = pool.start(pool.bus(), ADMISSION)
    pool.submit("a")
    pool.run_for(LONG_S)
    assert "snapshot not used" in pool.log.lines
    assert pool.decided == [("JobAdmitted", "other"), ("JobRejected", "a")]
    assert replica.host.folded == folded(read_entries(pool.broker.ledger(POOL).messages.values()))


def test_a_snapshot_replaces_the_messages_before_it(pool: OnePool) -> None:
    """So the test above can fail: a host trusts what a readable snapshot says."""
    pool.decide(admitted("other"))
    store_snapshot(pool, GOOD)
    pool.start(pool.bus(), ADMISSION)
    pool.submit("a")
    pool.run_for(LONG_S)
    assert "snapshot loaded" in pool.log.lines
    assert ("JobAdmitted", "a") in pool.decided


# -- leases


def test_a_host_that_is_paused_past_its_lease_does_no_harm(pool: OnePool) -> None:
    """Its append reaches the broker after another replica has taken the lease and decided."""
    paused: list[DelayedLink] = []

    async def pause(bus: FaultyBus, store: Store) -> int:
        assert isinstance(bus.link, DelayedLink)
        bus.link.cut()
        paused.append(bus.link)
        return await store()

    first = pool.start(pool.bus(pause), ALLOCATOR, "first")
    pool.run_for(LONG_S)
    second = pool.start(pool.bus(), ALLOCATOR, "second")
    pool.run_for(LONG_S)
    assert first.lease is not None
    assert second.lease is not None
    assert (first.lease.held, second.lease.held) == (True, False)

    requested = [
        events.ProfileRequested(job_id=job_id, tenant="lab", spec=spec(), deadline_s=None, at_s=NOW_S)
        for job_id in ("a", "b")
    ]
    pool.decide(requested[0])
    pool.run_for(LONG_S)
    assert (first.lease.held, second.lease.held) == (False, True)
    assert pool.decided[1:] == [("JobAdmitted", "a")]

    pool.loop.call_soon(paused[0].repair)
    pool.run_for(LONG_S)
    pool.decide(requested[1])
    pool.run_for(LONG_S)
    assert pool.decided[1:] == [("JobAdmitted", "a"), ("ProfileRequested", "b"), ("JobAdmitted", "b")]
    records = pool.broker.ledger(POOL).messages.values()
    deciders = [record.message_id.split("-")[2] for record in records if record.message_id.startswith("allocator-")]
    assert deciders == ["second", "second"]
    assert first.host.folded == second.host.folded
