"""One client at a time has the lease of an open load."""

from elasticflow.shared.runtime.bus.load_lease import (
    has_load_lease,
    release_load_lease,
    renew_load_lease,
    take_load_lease,
)
from elasticflow.simulator.pipeline.memory_bus import MemoryBus

POOL = "p"


async def test_the_first_client_has_the_lease_and_a_repeat_has_no_effect() -> None:
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    assert not await has_load_lease(bus, POOL, "a")
    assert await take_load_lease(bus, POOL, "a", "first")
    assert not await take_load_lease(bus, POOL, "a", "second")
    assert await take_load_lease(bus, POOL, "a", "first"), "its reply may have been lost"
    assert await take_load_lease(bus, POOL, "b", "second"), "another load"
    await renew_load_lease(bus, POOL, "a", "first")
    assert not await take_load_lease(bus, POOL, "a", "second")
    assert await has_load_lease(bus, POOL, "a")


async def test_a_lease_that_is_released_is_held_no_more() -> None:
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    await take_load_lease(bus, POOL, "a", "first")
    await release_load_lease(bus, POOL, "a")
    assert not await has_load_lease(bus, POOL, "a")
