"""Commands between their pull and their acknowledgement."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from elasticflow.shared.errors import Unavailable
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.commands import CancelJob, CancelLoad, Command, SubmitJob, id_of
from elasticflow.shared.messages.events import MessageRejected, PlanDecided, QueuePosition, WorkersStopped
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import WorkQueue
from elasticflow.shared.runtime.service import command_queue
from elasticflow.shared.runtime.service.command_queue import (
    ACK_WAIT_S,
    ANSWER_TO,
    HOLD_S,
    LEAST_BYTES,
    CommandBudgets,
    CommandQueue,
)
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from testbed.histories import History, submit
from tests.support.service_contexts import service_context
from tests.support.virtual_clock import VirtualClock
from tests.support.worker_events import admitted


@asynccontextmanager
async def queue_with(
    *commands: SubmitJob | CancelJob, folded: Callable[[], PoolState] = PoolState
) -> AsyncIterator[CommandQueue]:
    """It has pulled them all. folded: the state of its replica."""
    clock = VirtualClock()
    bus = MemoryBus(clock=clock)
    await bus.ensure_pool("p")
    for number, command in enumerate(commands):
        data = codec.encode(command, id=str(number), recorded_at_s=0.0)
        await bus.append(subjects.submit(command.tenant, "p"), data, message_id=str(number))
    all_here = asyncio.Event()
    queue = CommandQueue(service_context(bus, "p", clock), "admission", all_here.set, folded)
    running = asyncio.create_task(queue.run())
    await all_here.wait()
    yield queue
    running.cancel()
    await asyncio.wait({running})


@dataclass(frozen=True, slots=True)
class Refused:
    """dead_letters: bytes and reason. answered: the subjects on which an answer was published."""

    queue: CommandQueue
    dead_letters: list[tuple[bytes, str]]
    answered: list[str]


@asynccontextmanager
async def refused(
    tenant: str, data: bytes, answer_to: str = "", state: PoolState | None = None
) -> AsyncIterator[Refused]:
    """What becomes of bytes that came on the subject of a tenant. answer_to: the inbox of which it tells."""
    answered, news = list[str](), asyncio.Event()

    class RecordingBus(MemoryBus):
        async def publish(self, subject: str, data: bytes, reply: str = "") -> None:
            answered.append(subject)

    bus = RecordingBus(clock=VirtualClock())
    await bus.ensure_pool("p")
    bus.broker.stream(streams.submit_stream("p")).on_settle = lambda record: news.set()
    await bus.append(subjects.submit(tenant, "p"), data, message_id="command", headers={ANSWER_TO: answer_to})
    folded = state or PoolState()
    queue = CommandQueue(service_context(bus, "p", VirtualClock()), "admission", news.set, lambda: folded)
    running = asyncio.create_task(queue.run())
    await news.wait()  # it has left the queue, or waits for a decision
    letters = bus.broker.stream(streams.dead_letter_stream("p"))
    yield Refused(
        queue,
        [(letter.data, letters.headers[sequence]["Ef-Reason"]) for sequence, letter in letters.messages.items()],
        answered,
    )
    running.cancel()
    await asyncio.wait({running})


async def test_a_command_in_the_name_of_another_tenant_is_refused() -> None:
    """A server lets a tenant publish on its own subject only, whatever the message says."""
    data = codec.encode(submit("a", tenant="victim"), id="command", recorded_at_s=0.0)
    async with refused("mallory", data) as found:
        assert found.queue.take(1) == ()
        assert found.dead_letters == [(data, "tenant: 'victim' may not publish on the subject of 'mallory'")]


async def test_unreadable_bytes_are_kept_with_the_reason() -> None:
    async with refused("lab", b"{", "_INBOX.lab") as found:
        ((data, reason),) = found.dead_letters
        assert data == b"{"
        assert reason.startswith("neither msgpack nor JSON")


LIVE = History().configured().nodes(4).then(admitted("a"), admitted("theirs", tenant="other")).state


@pytest.mark.parametrize(
    ("command", "is_taken"),
    [
        (submit("b"), False),
        (CancelJob(job_id="a", tenant="lab"), True),
        (CancelJob(job_id="a", tenant="lab", reason="x" * LEAST_BYTES), False),
        (CancelJob(job_id="unknown", tenant="lab"), False),
        (CancelJob(job_id="theirs", tenant="lab"), False),
        (CancelLoad(load_id="unknown", tenant="lab"), False),
    ],
)
async def test_a_tenant_beyond_its_bytes_may_only_end_what_it_has(
    command: Command, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommandBudgets, "use", lambda *_: "retry in 7 s")
    data = codec.encode(command, id="command", recorded_at_s=0.0)
    async with refused(command.tenant, data, state=LIVE) as found:
        assert len(found.queue.take(1)) == is_taken
        assert found.dead_letters == [], "the limit is on what is kept"
        assert len(found.answered) == (not is_taken)


async def test_beyond_its_bytes_a_tenant_may_end_what_waits_for_a_decision_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = [submit("new"), *(CancelJob(job_id="new", tenant="lab") for _ in range(3))]
    answers = iter((None, *("retry in 7 s" for _ in commands[1:])))
    monkeypatch.setattr(CommandBudgets, "use", lambda *_: next(answers))
    async with queue_with(*commands) as queue:
        for expected in ([SubmitJob], [CancelJob], []):
            taken = queue.take(4)
            assert [type(pending.command) for pending in taken] == expected
            queue.settled(taken)


async def test_a_sender_cannot_have_its_answer_sent_to_another_tenant() -> None:
    """A service may publish on all answer subjects."""
    data = codec.encode(submit("a", tenant="victim"), id="command", recorded_at_s=0.0)
    async with refused("mallory", data, subjects.answer("victim", "p", "a")) as found:
        assert found.answered == [subjects.answer("mallory", "p", "a")]


async def test_a_replica_that_may_not_decide_leaves_its_commands_to_others_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("elasticflow.shared.runtime.service.command_queue.MAX_PENDING", 1)  # it asks for no other one
    clock, is_fit, news = VirtualClock(), True, asyncio.Event()
    bus = MemoryBus(clock=clock)
    await bus.ensure_pool("p")
    queue = CommandQueue(service_context(bus, "p", clock), "admission", news.set, PoolState, lambda: is_fit)
    running = asyncio.create_task(queue.run())
    data = codec.encode(submit("a"), id="command", recorded_at_s=0.0)
    await bus.append(subjects.submit("lab", "p"), data, message_id="command")
    await news.wait()
    other = await bus.work("p", "admission", ack_wait_s=ACK_WAIT_S)
    await clock.advance_to(HOLD_S)  # it says that it still has the command
    is_fit = False
    await clock.advance_to(2 * HOLD_S)
    (item,) = await other.pull(1, 0.0)
    assert item.data == data
    assert queue.take(1) == ()
    running.cancel()
    await asyncio.wait({running})


async def test_a_command_stays_with_its_replica_while_that_runs_and_no_longer() -> None:
    clock = VirtualClock()
    bus = MemoryBus(clock=clock)
    await bus.ensure_pool("p")
    news = asyncio.Event()
    inbox = CommandQueue(service_context(bus, "p", clock), "admission", news.set, PoolState)
    running = asyncio.create_task(inbox.run())
    data = codec.encode(submit("a"), id="command", recorded_at_s=0.0)
    await bus.append(subjects.submit("lab", "p"), data, message_id="command")
    await news.wait()
    await clock.advance_to(8 * ACK_WAIT_S)  # the ledger takes nothing for so long
    other = await bus.work("p", "admission", ack_wait_s=ACK_WAIT_S)
    assert await other.pull(1, 0.0) == []
    assert [pending.command for pending in inbox.take(1)] == [submit("a")]

    running.cancel()
    await asyncio.wait({running})
    pulling = asyncio.create_task(other.pull(1, 2 * ACK_WAIT_S))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await clock.advance_to(clock.now_s() + ACK_WAIT_S)
    (item,) = await pulling
    assert (item.data, item.num_delivered) == (data, 2)


async def test_a_replica_that_starts_while_the_server_has_no_leader_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 205 of the nemesis: admission ended, because the server made no consumer within 5 s."""
    work, failures = MemoryBus.work, [Unavailable("nats://h", "no reply on $JS.API.CONSUMER.CREATE")] * 2

    async def late(bus: MemoryBus, pool: str, name: str, *, ack_wait_s: float) -> WorkQueue:
        if failures:
            raise failures.pop()
        return await work(bus, pool, name, ack_wait_s=ack_wait_s)

    monkeypatch.setattr(MemoryBus, "work", late)
    async with queue_with(submit("a")) as queue:
        assert [pending.command for pending in queue.take(1)] == [submit("a")]
    assert not failures


async def test_no_more_commands_are_taken_at_once_than_one_decision_can_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualClock()
    bus = MemoryBus(clock=clock)
    await bus.ensure_pool("p")
    commands = [submit(f"job-{number}") for number in range(5)]
    payloads = [codec.encode(command, id=command.job_id, recorded_at_s=0.0) for command in commands]
    monkeypatch.setattr(
        "elasticflow.shared.runtime.service.command_queue.MAX_DECISION_BYTES", int(2.5 * len(payloads[0]))
    )
    for command, data in zip(commands, payloads, strict=True):
        await bus.append(subjects.submit("lab", "p"), data, message_id=command.job_id)
    all_here = asyncio.Event()
    inbox = CommandQueue(service_context(bus, "p", clock), "admission", all_here.set, PoolState)
    running = asyncio.create_task(inbox.run())
    await all_here.wait()  # one pull brings all
    for expected in (commands[:2], commands[2:4], commands[4:]):
        taken = inbox.take(5)
        assert [pending.command for pending in taken] == expected
        inbox.settled(taken)
    running.cancel()
    await asyncio.wait({running})


async def test_a_tenant_with_many_commands_does_not_delay_that_of_another() -> None:
    flood = [submit(f"flood-{number}") for number in range(6)]
    taken: list[list[str]] = []
    async with queue_with(*flood, submit("late", tenant="other"), submit("later", tenant="other")) as queue:
        for max_commands in (1, 1, 2, 8):
            first = queue.take(max_commands)
            assert queue.take(max_commands) == first, "nothing changes until they are settled"
            taken.append([id_of(pending.command) for pending in first])
            queue.settled(first)
    assert taken[:3] == [["flood-0"], ["late"], ["later", "flood-1"]], "the other tenant has sent fewer bytes"
    assert taken[3] == [f"flood-{number}" for number in range(2, 6)]


async def test_a_command_that_has_a_decision_is_a_repeat_and_not_taken_again() -> None:
    again, new = submit("a"), submit("b")
    decided = PlanDecided(
        service="admission", based_on=4, now_s=0.0, queue_positions=(QueuePosition(1, 0.0),), events=()
    )
    state = ledger_fold.evolve(PoolState(sequence=4), decided, 5)
    async with queue_with(again, new, folded=lambda: state) as queue:
        assert [pending.command for pending in queue.take(8)] == [new]
        ((sequence, repeats),) = queue.repeats().items()
        assert (sequence, [pending.command for pending in repeats]) == (5, [again])


async def test_one_decision_takes_one_command_about_each_job() -> None:
    """Else a reader could not tell which of two amendments an event decides on."""
    first, second, other = submit("a"), CancelJob(job_id="a", tenant="lab"), submit("b")
    async with queue_with(first, second, other) as queue:
        taken = queue.take(8)
        assert [pending.command for pending in taken] == [first, other]
        queue.settled(taken)
        assert [pending.command for pending in queue.take(8)] == [second]


@pytest.mark.parametrize(("tenants", "least"), [(("lab", "other"), 1), (("lab", "lab"), 4)])
async def test_decisions_are_short_where_several_tenants_send_commands(tenants: tuple[str, str], least: int) -> None:
    """Each command waits for the decision before it. One tenant alone gets longer ones, once their cost is known."""
    async with queue_with(*(submit(f"job-{number}", tenant=tenants[number % 2]) for number in range(200))) as queue:

        def num_taken(command_s: float) -> int:
            taken = queue.take(64)
            queue.took(taken, command_s * len(taken))
            return len(taken)

        few = [num_taken(0.0001) for _ in range(20)]
        assert few == sorted(few)
        assert few[0] < few[-1] == 64, "the number grows while decisions are fast"
        slow = [num_taken(0.1) for _ in range(20)]
        assert slow[-1] == least


async def test_a_tenant_that_sends_little_waits_for_no_expensive_command_of_another() -> None:
    flood = [submit(f"flood-{number}", tenant="flood") for number in range(20)]
    async with queue_with(*flood, submit("small"), submit("large", tenant="other", description="x" * 20_000)) as queue:
        taken = queue.take(1)
        queue.took(taken, 1.0)
        queue.settled(taken)
        names = [id_of(pending.command) for pending in queue.take(64)]
        assert names == ["small", "large"], "a decision with one more of the flood takes too long"
        queue.settled(queue.take(64))
        assert [id_of(pending.command) for pending in queue.take(64)] == ["flood-1"]


async def test_decisions_go_on_while_a_queue_full_of_large_commands_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_queue, "YIELD_BYTES", 0)
    commands = [submit(f"job-{number}") for number in range(4)]
    async with queue_with(*commands) as queue:
        assert 1 <= len(queue.take(4)) < 4
        for _ in commands:
            await asyncio.sleep(0)
        assert len(queue.take(4)) == 4


async def test_what_is_beyond_the_budget_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommandBudgets, "use", lambda *_: "retry in 7 s")

    def decode(data: bytes, **_: int) -> codec.Envelope:
        raise AssertionError("it is read")

    data = codec.encode(submit("a", description="x" * 2_000), id="command", recorded_at_s=0.0)
    with monkeypatch.context() as patch:
        patch.setattr(codec, "decode", decode)
        for sent in (data, b"{" * 2_000):
            async with refused("lab", sent, "_INBOX.lab") as found:
                assert found.answered[0] == "_INBOX.lab"
                assert found.dead_letters == [], "nor kept"


async def test_a_flood_of_refused_commands_is_one_line_for_each_tenant_and_kind() -> None:
    """Of those that are dead-lettered, too. The others are counted when the minute or the service ends."""
    lines: list[tuple[str, dict[str, Any]]] = []

    class Log(SilentLog):
        def warning(self, event: str, **keys: Any) -> None:
            lines.append((event, keys))

    clock = VirtualClock()
    bus = MemoryBus(clock=clock)
    await bus.ensure_pool("p")
    for number in range(50):
        for tenant in ("loud", "quiet")[: 1 + (number == 40)]:
            await bus.append(subjects.submit(tenant, "p"), b"junk", message_id=f"{tenant}-{number}")
    settled: list[int] = []
    all_settled = asyncio.Event()

    def on_settle(_: object) -> None:
        settled.append(1)
        if len(settled) == 51:
            all_settled.set()

    bus.broker.stream(streams.submit_stream("p")).on_settle = on_settle
    context = service_context(bus, "p", clock, log=Log())
    running = asyncio.create_task(CommandQueue(context, "admission", lambda: None, PoolState).run())
    await all_settled.wait()
    assert [(event, keys["subject"]) for event, keys in lines] == [
        ("MessageRejected", subjects.submit("loud", "p")),
        ("MessageRejected", subjects.submit("quiet", "p")),
    ]
    running.cancel()
    await asyncio.wait({running})
    assert [(event, keys["number"]) for event, keys in lines[2:]] == [("RefusalsCounted", 49)]


async def test_a_flood_cannot_be_billed_to_another_tenant() -> None:
    """The budget is that of the subject, whatever the message says."""
    counted: list[str] = []

    class Recorder(CommandBudgets):
        def use(self, tenant: str, num_bytes: int, now_s: float) -> str | None:
            counted.append(tenant)
            return super().use(tenant, num_bytes, now_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_queue, "CommandBudgets", Recorder)
        data = codec.encode(submit("a", tenant="victim"), id="command", recorded_at_s=0.0)
        async with refused("mallory", data):
            assert counted == ["mallory"]


@pytest.mark.parametrize("reporter", ["", "n"])
async def test_the_name_of_a_job_that_the_state_has_forgotten_is_found_in_the_ledger(reporter: str) -> None:
    clock = VirtualClock()
    bus = MemoryBus(clock=clock)
    await bus.ensure_pool("p")
    for name in ("old", "unfolded"):
        stopped = WorkersStopped(job_id=name, generation=1, node_id="n", at_s=0.0)
        data = codec.encode(stopped, id=name, recorded_at_s=0.0)
        await bus.append(subjects.job("p", name, reporter), data, message_id=name)
    refusals = await bus.subscribe(subjects.answer("lab", "p", "old"))
    names = ["old", "unfolded", "new"]
    for name in names:
        data = codec.encode(submit(name), id=name, recorded_at_s=0.0)
        await bus.append(subjects.submit("lab", "p"), data, message_id=f"command-{name}")
    news = asyncio.Event()
    folded = PoolState(sequence=1, num_forgotten=7)
    inbox = CommandQueue(service_context(bus, "p", clock), "admission", news.set, lambda: folded)
    running = asyncio.create_task(inbox.run())
    refusal = codec.decode((await anext(refusals)).data).message
    assert isinstance(refusal, MessageRejected)
    assert "ended long ago" in refusal.problems[0]
    while len(inbox.take(3)) < 2:
        news.clear()
        await news.wait()
    assert [id_of(pending.command) for pending in inbox.take(3)] == ["unfolded", "new"]
    running.cancel()


@pytest.mark.parametrize("claimed", ["", "alice"])
async def test_a_job_belongs_to_the_tenant_on_whose_subject_it_came(claimed: str) -> None:
    async with queue_with(submit("a", "mallory", owner=claimed)) as queue:
        (pending,) = queue.take(1)
        assert isinstance(pending.command, SubmitJob)
        assert pending.command.spec.owner == "mallory"
