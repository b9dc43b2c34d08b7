"""A clock that is set while processes sleep by it, and a network of which one way is cut."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from elasticflow.shared.errors import MaybeStored, NotFound, StorageFull, Unavailable
from elasticflow.shared.runtime.bus import streams
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.memory_link import DelayedLink, FaultSource, LinkFaults
from elasticflow.simulator.pipeline.simulated_process import SteppedClock
from elasticflow.simulator.virtual_time import VirtualClock, VirtualTimeLoop
from tests.support.shared_pool import PLAN, POOL

LONG_S = 100.0


def run(make: Callable[[VirtualTimeLoop], Coroutine[Any, Any, None]]) -> None:
    """On virtual time, to the end of the coroutine."""
    loop = VirtualTimeLoop()
    ended: list[str] = []

    async def whole() -> None:
        await make(loop)
        ended.append("whole")

    loop.spawn(whole(), "test")
    loop.advance_to(LONG_S)
    loop.finish()
    assert ended


@pytest.mark.parametrize(("step_s", "wakes_s"), [(4.0, 6.0), (-4.0, 14.0), (20.0, 3.0), (0.0, 10.0)])
def test_a_sleeper_follows_a_clock_that_is_set(step_s: float, wakes_s: float) -> None:
    async def sleeps(loop: VirtualTimeLoop) -> None:
        clock = SteppedClock(loop)
        loop.after(3.0, lambda: clock.set_off(step_s))
        await clock.sleep_until(10.0)
        assert loop.now_s == wakes_s
        assert clock.now_s() == wakes_s + step_s

    run(sleeps)


def test_a_client_that_only_sends_stores_and_has_no_answer() -> None:
    async def sends(loop: VirtualTimeLoop) -> None:
        bus = MemoryBus(clock=VirtualClock(loop), delayed=True)
        await bus.ensure_pool(POOL)
        link = bus.link
        assert isinstance(link, DelayedLink)
        link.cut(sends=True)
        with pytest.raises(MaybeStored):
            await bus.append(PLAN, b"sent", message_id="1", timeout_s=1.0)
        assert bus.broker.ledger(POOL).last_sequence == 1
        link.repair()
        link.cut(receives=True)
        asyncio.get_running_loop().call_later(5.0, link.repair)
        with pytest.raises(MaybeStored):
            await bus.append(PLAN, b"late", message_id="2", timeout_s=1.0)
        assert bus.broker.ledger(POOL).last_sequence == 1
        await asyncio.sleep(6.0)
        assert bus.broker.ledger(POOL).last_sequence == 2

    run(sends)


def test_a_failing_storage_says_so() -> None:
    async def fails(loop: VirtualTimeLoop) -> None:
        faults = LinkFaults(storage_full=1.0, failed_read=1.0, failed_object=1.0)
        bus = MemoryBus(clock=VirtualClock(loop), faults=FaultSource(faults, np.random.default_rng(1)), delayed=True)
        await bus.ensure_pool(POOL)
        with pytest.raises(StorageFull):
            await bus.append(PLAN, b"", message_id="1")
        assert bus.broker.ledger(POOL).last_sequence == 0
        bucket = streams.snapshot_bucket(POOL)
        reading = MemoryBus(bus.broker, clock=VirtualClock(loop))
        stored: set[bool] = set()
        for number in range(20):
            with pytest.raises(Unavailable):
                await bus.put_object(bucket, str(number), b"x")
            try:
                stored.add(await reading.get_object(bucket, str(number), max_bytes=1) == b"x")
            except NotFound:
                stored.add(False)
        assert stored == {True, False}
        for read in (bus.get_object(bucket, "0", max_bytes=1), bus.ledger_end(POOL), bus.get_value(bucket, "x")):
            with pytest.raises(Unavailable):
                await read

    run(fails)
