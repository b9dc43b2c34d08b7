"""Given messages among the telemetry that are no heartbeats, the monitor keeps some and counts all."""

import asyncio
from types import SimpleNamespace
from typing import Any

from elasticflow.services.monitor.service import MAX_UNREADABLE, _Unreadable
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.runtime.bus.contract import Message
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from testbed.histories import NOW_S

POOL = "p"


async def test_a_flood_of_unreadable_telemetry_is_one_line_for_each_subject_and_their_number() -> None:
    lines = list[tuple[str, dict[str, Any]]]()

    class Log(SilentLog):
        def warning(self, event: str, **keys: Any) -> None:
            lines.append((event, keys))

    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    settings, clock = SimpleNamespace(pool=POOL), SimpleNamespace(now_s=lambda: NOW_S)
    process: Any = SimpleNamespace(bus=bus, settings=settings, clock=clock, log=Log(), metrics=Metrics("test", POOL))
    unreadable = _Unreadable(process)
    for number in range(2 * MAX_UNREADABLE):
        unreadable.add(Message(subject="loud", data=b"%d" % number), Undecodable("junk"))
    unreadable.add(Message(subject="quiet", data=b"one"), Undecodable("junk"))
    keeping = asyncio.create_task(unreadable.dead_letter())
    await asyncio.sleep(0)  # it begins
    keeping.cancel()
    await asyncio.wait({keeping})
    assert [(event, keys["subject"]) for event, keys in lines[:2]] == [
        ("MessageRejected", "loud"),
        ("MessageRejected", "quiet"),
    ]
    assert [(event, keys["sender"], keys["number"]) for event, keys in lines[2:]] == [
        ("RefusalsCounted", "loud", 2 * MAX_UNREADABLE - 1)
    ]
