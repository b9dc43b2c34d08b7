"""The work queue delivers a command again: the host replies with the recorded decision, on both buses."""

import asyncio

import pytest

from elasticflow.services.admission.policy import POLICY
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.commands import CancelJob
from elasticflow.shared.messages.events import CancelRejected
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.bus.nats.work_queue import NatsWorkItem
from elasticflow.shared.runtime.service import command_queue
from elasticflow.shared.runtime.service.host import Host
from elasticflow.simulator.pipeline.memory_bus import MemoryWorkItem
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from tests.support.service_contexts import service_context
from tests.support.shared_pool import POOL, next_of, read_all

ACK_WAIT_S = 1.0


async def test_a_repeated_command_gets_the_recorded_reply(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_queue, "ACK_WAIT_S", ACK_WAIT_S)
    acknowledged = asyncio.Event()
    for kind in (MemoryWorkItem, NatsWorkItem):

        async def ack(item: MemoryWorkItem | NatsWorkItem, send=kind.ack) -> None:
            if item.num_delivered > 1:  # the first acknowledgement is lost
                await send(item)
                acknowledged.set()

        monkeypatch.setattr(kind, "ack", ack)
    host = Host(
        service_context(bus, POOL, log=SilentLog()),
        POLICY,
    )
    answers = await bus.subscribe(subjects.answer("lab", POOL, "a"))
    data = codec.encode(CancelJob(job_id="a", tenant="lab"), id="cancel", recorded_at_s=0.0)
    await bus.append(subjects.submit("lab", POOL), data, message_id="cancel")
    running = asyncio.create_task(host.run())
    first, again = [codec.decode((await next_of(answers)).data) for _ in range(2)]
    async with asyncio.timeout(60):
        await acknowledged.wait()
    running.cancel()
    await asyncio.wait({running})
    assert isinstance(first.message, CancelRejected)
    assert again.message == first.message, "with the time of the first decision"
    assert (first.cause_id, again.cause_id) == ("cancel", "cancel")
    assert len(await read_all(bus)) == 1
