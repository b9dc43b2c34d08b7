"""The views of tenants: few writes, none over a newer one, and the same after a monitor that ended at any write."""

import contextlib
from typing import Any

import pytest

from elasticflow.history.job_history import EventsInWords
from elasticflow.history.stored_history import StoredHistory
from elasticflow.services.monitor.tenant_views import (
    AS_OF_EVERY_S,
    REPORTS_WAIT_S,
    TENANT_EVERY_S,
    NewHistories,
    ViewWriter,
)
from elasticflow.shared.errors import Unavailable, WrongExpectedSequence
from elasticflow.shared.messages import events
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.state.pool import PoolState
from elasticflow.shared.state.tenant_view import (
    AsOf,
    StoredView,
    TenantPart,
    WriterPosition,
    decode_small,
    tenant_parts,
)
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from testbed.histories import NOW_S, History
from tests.unit.shared.state.test_tenant_view import shared_pool

POOL = "p"
FOLD = LoadSpec(task_function="proteins:fold", task_s=1.0)
BUCKET = streams.view_bucket(POOL)
ACME, GLOBEX = streams.tenant_view_key("acme"), streams.tenant_view_key("globex")


class HandClock:
    """Stands still unless a test moves it."""

    at_s = NOW_S

    def now_s(self) -> float:
        return self.at_s

    async def sleep_until(self, at_s: float) -> None:
        raise AssertionError("the writer does not wait")


class CountingBus(MemoryBus):
    """Counts the values that are put, and ends the process before one of them."""

    num_puts = 0
    ends_before: int | None = None

    async def put_value(self, *arguments: Any, **named: Any) -> int:
        if self.num_puts == self.ends_before:
            raise Unavailable("memory", "the process has ended")
        self.num_puts += 1
        return await super().put_value(*arguments, **named)


async def new_bus() -> CountingBus:
    bus = CountingBus()
    await bus.ensure_pool(POOL)
    return bus


async def monitor(bus: MemoryBus, clock: HandClock, state: PoolState | None = None) -> tuple[NewHistories, ViewWriter]:
    """As it starts: from the stored position."""
    value = await bus.get_value(BUCKET, streams.WRITER_KEY)
    position = WriterPosition(histories_to=0) if value is None else decode_small(WriterPosition, value.data)
    histories = NewHistories(state or PoolState(), position.histories_to)
    return histories, ViewWriter(bus, POOL, clock, histories, position.tenants)


def fold(histories: NewHistories, messages: list[Any], at_s: float = NOW_S) -> None:
    """at_s: when the ledger got them."""
    for message in messages:
        histories.fold(histories.state.sequence + 1, at_s, message)


async def stored(bus: MemoryBus, key: str) -> StoredView:
    value = await bus.get_value(BUCKET, key)
    assert value is not None
    return StoredView.decode(value.data)


async def history(bus: MemoryBus, tenant: str, job_id: str) -> StoredHistory:
    value = await bus.get_value(BUCKET, streams.history_key(tenant, job_id))
    return StoredHistory() if value is None else StoredHistory.decode(value.data)


async def as_of(bus: MemoryBus) -> AsOf:
    value = await bus.get_value(BUCKET, streams.AS_OF_KEY)
    assert value is not None
    return decode_small(AsOf, value.data)


def progressed(job_id: str, iteration: int, at_s: float = NOW_S) -> events.JobProgressed:
    return events.JobProgressed(job_id=job_id, generation=1, iteration=iteration, iterations_per_s=1.0, at_s=at_s)


async def test_each_tenant_has_its_own_jobs_and_their_histories() -> None:
    ledger, bus, clock = shared_pool(), await new_bus(), HandClock()
    histories, writer = await monitor(bus, clock)
    fold(histories, ledger.messages)
    await writer.round()
    for key, tenant in ((ACME, "acme"), (GLOBEX, "globex")):
        assert (await stored(bus, key)).part(TenantPart) == tenant_parts(ledger.state)[tenant]
    assert (await as_of(bus)) == AsOf(sequence=ledger.state.sequence, at_s=NOW_S)
    texts = [entry.text for entry in (await history(bus, "acme", "line")).entries]
    assert texts[0].startswith("submitted by acme")
    assert (await history(bus, "acme", "secret-project")).entries == ()
    admitted = (await history(bus, "acme", "line")).decoded_events()[0].event
    assert isinstance(admitted, events.JobAdmitted)


def opened(load_id: str, tenant: str) -> events.LoadOpened:
    return events.LoadOpened(load_id=load_id, tenant=tenant, spec=FOLD, at_s=NOW_S)


async def test_a_tenant_has_the_histories_of_its_own_padding_loads_with_the_replies() -> None:
    bus = await new_bus()
    histories, writer = await monitor(bus, HandClock())
    costly = {"reason": "useful_share", "explanation": "too short", "at_s": NOW_S}
    ledger = shared_pool().then(
        opened("fold", "acme"),
        opened("line", "globex"),  # the name of a job of another tenant
        events.LoadSealed(load_id="fold", num_tasks=5, at_s=NOW_S),
        events.CancelLoadRejected(load_id="fold", tenant="globex", explanation="not yours", at_s=NOW_S),
        events.PlanDecided(
            service="admission",
            based_on=1,
            now_s=NOW_S,
            events=tuple(events.LoadRejected(load_id="new", tenant=name, **costly) for name in ("acme", "globex")),
        ),
        events.LoadCancelled(load_id="fold", reason="enough", at_s=NOW_S),
    )
    fold(histories, ledger.messages)
    await writer.round()
    of_fold = await history(bus, "acme", "fold")
    assert [entry.type for entry in of_fold.entries] == ["LoadOpened", "LoadSealed", "LoadCancelled"]
    assert [type(kept.event) for kept in of_fold.decoded_events()] == [
        events.LoadOpened,
        events.LoadSealed,
        events.LoadCancelled,
    ]
    of_others = await history(bus, "globex", "fold")
    assert of_others.entries == ()
    assert [type(kept.event) for kept in of_others.decoded_events()] == [events.CancelLoadRejected]
    assert [entry.type for entry in (await history(bus, "globex", "line")).entries] == ["LoadOpened"]
    assert "LoadOpened" not in {entry.type for entry in (await history(bus, "acme", "line")).entries}
    for tenant in ("acme", "globex"):
        (entry,) = (await history(bus, tenant, "new")).entries
        assert entry.text.startswith(f"{tenant} requested it; rejected")


async def test_what_changes_within_a_second_is_stored_once_and_no_other_tenants_view() -> None:
    ledger, bus, clock = shared_pool(), await new_bus(), HandClock()
    histories, writer = await monitor(bus, clock)
    fold(histories, ledger.messages)
    await writer.round()
    of_globex = await bus.get_value(BUCKET, GLOBEX)
    clock.at_s += TENANT_EVERY_S
    bus.num_puts, due_at_s = 0, 0.0
    for iteration in range(1, 11):
        fold(histories, [progressed("line", iteration, NOW_S + iteration)])
        due_at_s = await writer.round()
    assert bus.num_puts == 2  # the view and `as_of`: a report of progress alone changes no history so soon
    assert due_at_s == clock.at_s + TENANT_EVERY_S
    assert (await stored(bus, ACME)).part(TenantPart).live_jobs["line"].iteration == 1
    clock.at_s = due_at_s
    await writer.round()
    assert (await stored(bus, ACME)).part(TenantPart).live_jobs["line"].iteration == 10
    assert await bus.get_value(BUCKET, GLOBEX) == of_globex


async def test_readers_are_not_told_more_than_the_stored_views_hold() -> None:
    ledger, bus, clock = shared_pool(), await new_bus(), HandClock()
    histories, writer = await monitor(bus, clock)
    fold(histories, ledger.messages)
    await writer.round()
    before = ledger.state.sequence
    fold(histories, [progressed("line", 1), progressed("line", 2)])
    clock.at_s += TENANT_EVERY_S / 2
    await writer.round()
    clock.at_s += AS_OF_EVERY_S
    fold(histories, [progressed("line", 3)])
    writer._next_at_s["acme"] = clock.at_s + 1.0
    await writer.round()
    assert (await as_of(bus)) == AsOf(sequence=before, at_s=clock.at_s)
    clock.at_s += 1.0
    await writer.round()
    assert (await as_of(bus)).sequence == before + 3


async def test_an_idle_pool_says_that_its_views_hold_still() -> None:
    ledger, bus, clock = shared_pool(), await new_bus(), HandClock()
    histories, writer = await monitor(bus, clock)
    fold(histories, ledger.messages)
    await writer.round()
    bus.num_puts = 0
    clock.at_s += AS_OF_EVERY_S
    await writer.round()
    assert bus.num_puts == 1
    assert (await as_of(bus)).at_s == clock.at_s


async def test_reports_of_progress_reach_the_history_later() -> None:
    ledger, bus, clock = shared_pool(), await new_bus(), HandClock()
    histories, writer = await monitor(bus, clock)
    fold(histories, ledger.messages)
    await writer.round()
    fold(histories, [progressed("line", 7)], clock.at_s)
    clock.at_s += TENANT_EVERY_S
    await writer.round()
    assert (await history(bus, "acme", "line")).entries[-1].type == "GenerationStarted"
    clock.at_s += REPORTS_WAIT_S
    await writer.round()
    assert (await history(bus, "acme", "line")).entries[-1].text.startswith("reached iteration 7")


async def test_a_monitor_that_paused_replaces_no_newer_view() -> None:
    ledger, bus, clock = shared_pool(), await new_bus(), HandClock()
    paused, paused_writer = await monitor(bus, clock)
    fold(paused, ledger.messages)
    await paused_writer.round()
    leading, leading_writer = await monitor(bus, clock)
    fold(leading, [*ledger.messages, progressed("line", 5)])
    await leading_writer.round()
    fold(paused, [progressed("line", 5)])
    clock.at_s += TENANT_EVERY_S
    with pytest.raises(WrongExpectedSequence):
        await paused_writer.round()
    late, late_writer = await monitor(bus, clock)
    fold(late, ledger.messages)
    await late_writer.round()
    assert (await stored(bus, ACME)).part(TenantPart).live_jobs["line"].iteration == 5


def long_ledger() -> History:
    ledger = shared_pool()
    ledger.then(*(progressed("secret-project", iteration) for iteration in (10, 20)), progressed("line", 20))
    ledger.then(
        events.WorkerCrashed(
            job_id="line", generation=1, node_id="node-0", rank=0, explanation="out of memory", at_s=NOW_S + 2.0
        )
    )
    ledger.finished("secret-project", at_s=NOW_S + 3.0)
    cancelled = events.JobCancelled(job_id="line", reason="enough", at_s=NOW_S + 4.0)
    return ledger.then(
        events.PlanDecided(service="admission", based_on=ledger.state.sequence, now_s=NOW_S, events=(cancelled,))
    )


def expected_texts(ledger: History, name: str) -> list[str]:
    words = EventsInWords(for_tenants=True)
    added = StoredHistory()
    for sequence, message in enumerate(ledger.messages, 1):
        said = words.fold(sequence, getattr(message, "at_s", NOW_S), message)
        added = added.extended(sequence, [each.entry for each in said if each.name == name], ())
    return [entry.text for entry in added.entries]


async def ended_before(num_puts: int | None, ledger: History, bus: CountingBus, clock: HandClock) -> None:
    """A monitor that has followed this ledger, until it ended before a write. None: until the end of the ledger."""
    bus.ends_before = num_puts
    histories, writer = await monitor(bus, clock)
    with contextlib.suppress(Unavailable):
        for message in ledger.messages:
            fold(histories, [message], clock.at_s)
            clock.at_s += AS_OF_EVERY_S
            await writer.round()
    bus.ends_before = None


async def test_after_a_monitor_that_ended_at_any_write_all_views_are_as_if_it_had_not() -> None:
    ledger, bus = long_ledger(), await new_bus()
    await ended_before(None, ledger, bus, HandClock())
    assert bus.num_puts > 30
    for num_puts in range(bus.num_puts + 1):
        await check_after_an_end(num_puts, ledger)


async def check_after_an_end(num_puts: int, ledger: History) -> None:
    bus, clock = await new_bus(), HandClock()
    await ended_before(num_puts, ledger, bus, clock)
    histories, writer = await monitor(bus, clock)
    fold(histories, ledger.messages)
    for _ in range(4):
        clock.at_s += REPORTS_WAIT_S
        await writer.round()
    for key, tenant, job_id in ((ACME, "acme", "line"), (GLOBEX, "globex", "secret-project")):
        assert (await stored(bus, key)).part(TenantPart) == tenant_parts(ledger.state)[tenant]
        kept = await history(bus, tenant, job_id)
        assert [entry.text for entry in kept.entries] == expected_texts(ledger, job_id)
        assert [sequence for sequence, _ in kept.events] == sorted({sequence for sequence, _ in kept.events})
    assert (await as_of(bus)).sequence == ledger.state.sequence


async def test_a_tenant_whose_last_job_is_forgotten_sees_none() -> None:
    ledger, bus, clock = shared_pool(), await new_bus(), HandClock()
    histories, writer = await monitor(bus, clock)
    fold(histories, ledger.messages)
    await writer.round()
    clock.at_s += AS_OF_EVERY_S
    _, writer = await monitor(bus, clock)  # with a state that knows neither tenant
    await writer.round()
    newer = await stored(bus, ACME)
    assert newer.sequence == ledger.state.sequence  # of a ledger that it has not read: it waits
    empty = History()
    while empty.state.sequence <= ledger.state.sequence:
        empty.then(events.PoolConfigured(config=ledger.state.config, at_s=NOW_S))
    histories, writer = await monitor(bus, clock, empty.state)
    await writer.round()
    assert (await stored(bus, ACME)).part(TenantPart) == TenantPart()
