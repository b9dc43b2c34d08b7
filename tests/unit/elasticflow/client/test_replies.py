"""Replies that reach a client which waits for the reply to one command."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from elasticflow.client.command_requests import CommandRequests, Package
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.client.replies import CausedEvent, ReplyStream, follow_replies
from elasticflow.history.formatting import measured_in_words
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.commands import CancelJob, Command
from elasticflow.shared.messages.events import AmendRejected, JobAmended, JobCancelled, JobWarned, ThroughputMeasured
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.simulator.pipeline.memory_bus import MemoryBus

SUBJECT = subjects.answer("lab", "p", "a")


async def no_events() -> AsyncGenerator[CausedEvent, None]:
    await asyncio.Event().wait()
    yield  # pyright: ignore[reportReturnType]


def amended(max_iterations: int) -> JobAmended:
    return JobAmended(
        job_id="a",
        deadline_s=9.0,
        max_iterations=max_iterations,
        minimum_satisfactory_share=(),
        gpu_seconds=0.0,
        at_s=0.0,
    )


async def test_an_event_that_decides_on_another_command_about_the_job_is_no_reply() -> None:
    async def events() -> AsyncGenerator[CausedEvent, None]:
        for queue_sequence in (7, 8, 0):
            yield CausedEvent(amended(queue_sequence + 1), queue_sequence)
        await asyncio.Event().wait()

    bus = MemoryBus()
    async with follow_replies(await bus.subscribe(SUBJECT), events(), "lab", "mine") as replies:
        received = [await asyncio.wait_for(replies.next(8), 30.0) for _ in range(2)]
    assert received == [amended(9), amended(1)]


async def test_a_reply_that_is_repeated_for_another_command_is_ignored() -> None:
    bus = MemoryBus()
    async with follow_replies(await bus.subscribe(SUBJECT), no_events(), "lab", "mine") as replies:
        for cause_id in ("another", "", "mine", "another"):
            rejected = AmendRejected(job_id="a", explanation=f"cause {cause_id!r}", at_s=0.0)
            data = codec.encode(rejected, id="answer", cause_id=cause_id, recorded_at_s=0.0)
            await bus.publish(SUBJECT, data)
        received = [await asyncio.wait_for(replies.next(), 30.0) for _ in range(2)]
    assert [getattr(reply, "explanation", "") for reply in received] == ["cause ''", "cause 'mine'"]


async def test_a_rejection_of_a_command_of_another_tenant_about_the_job_is_ignored() -> None:
    async def events() -> AsyncGenerator[CausedEvent, None]:
        foreign = AmendRejected(job_id="a", tenant="rival", explanation="tenant rival has no such job", at_s=0.0)
        yield CausedEvent(foreign, 0)
        yield CausedEvent(amended(9), 0)
        await asyncio.Event().wait()

    bus = MemoryBus()
    async with follow_replies(await bus.subscribe(SUBJECT), events(), "lab", "mine") as replies:
        assert isinstance(await asyncio.wait_for(replies.next(), 30.0), JobAmended)


class Warned(CommandRequests):
    """Whose job gets these warnings before it is cancelled."""

    @contextlib.asynccontextmanager
    async def _replies_to(self, job_id: str, message_id: str) -> AsyncGenerator[ReplyStream, None]:
        async def events() -> AsyncGenerator[CausedEvent, None]:
            for generation, warning in enumerate(("two", "one", "two"), start=1):
                yield CausedEvent(JobWarned(job_id=job_id, generation=generation, warning=warning, at_s=0.0), 0)
            yield CausedEvent(JobCancelled(job_id=job_id, reason="", at_s=0.0), 0)

        async with follow_replies(await MemoryBus().subscribe(SUBJECT), events(), "lab", "mine") as replies:
            yield replies

    async def _publish(self, command: Command, message_id: str, code: Package | None = None) -> int:
        return 0


async def test_warnings_that_arrive_before_the_reply_are_told_once_each() -> None:
    bus: Any = MemoryBus()
    client, told = Warned(bus, Endpoint(nats_url="", pool="p"), "lab", SystemClock()), list[str]()
    client.on_warning = told.append
    command = CancelJob(job_id="a", tenant="lab", reason="")
    assert isinstance(await client._reply_to(command, (JobCancelled,), 30.0), JobCancelled)
    assert told == ["two", "one"]


class Measured(Warned):
    """Whose job is measured on one GPU and on two before it is cancelled, and a later job while it trains."""

    @contextlib.asynccontextmanager
    async def _replies_to(self, job_id: str, message_id: str) -> AsyncGenerator[ReplyStream, None]:
        async def events() -> AsyncGenerator[CausedEvent, None]:
            for num_gpus, source in ((1, "profile"), (2, "profile"), (2, "training")):
                measured: Any = {"profile_key": "m/b64", "num_gpus": num_gpus, "source": source}
                yield CausedEvent(
                    ThroughputMeasured(job_id=job_id, generation=1, iterations_per_s=3.0, at_s=0.0, **measured), 0
                )
            yield CausedEvent(JobCancelled(job_id=job_id, reason="", at_s=0.0), 0)

        async with follow_replies(await MemoryBus().subscribe(SUBJECT), events(), "lab", "mine") as replies:
            yield replies


async def test_measurements_that_arrive_before_the_reply_are_told() -> None:
    bus: Any = MemoryBus()
    client, told = Measured(bus, Endpoint(nats_url="", pool="p"), "lab", SystemClock()), list[str]()
    client.on_measured = lambda event: told.append(measured_in_words(event))
    command = CancelJob(job_id="a", tenant="lab", reason="")
    assert isinstance(await client._reply_to(command, (JobCancelled,), 30.0), JobCancelled)
    assert told == ["measured 3 iterations/s on 1 GPU", "measured 3 iterations/s on 2 GPUs"]
