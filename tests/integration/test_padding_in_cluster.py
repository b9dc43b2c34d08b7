"""Three servers store each result of a padding load before they acknowledge it, and keep the first one."""

import asyncio
from contextlib import aclosing
from pathlib import Path

from elasticflow.shared.errors import MaybeStored
from elasticflow.shared.messages import subjects
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.bus.nats.bus import connect_nats
from elasticflow.shared.runtime.bus.streams import StreamLimits
from tests.support.deployed_server import deployed
from tests.support.real_pool import persistently
from tests.support.shared_pool import POOL, next_of

NUM_PUBLISHERS = 8
NUM_TASKS = 20


async def first_result(bus: Bus, index: int, number: int) -> bool:
    """Whether ours is the first; repeats while the first one is on its way to the other servers."""
    while True:
        try:
            return await bus.append_first(subjects.result(POOL, "load", index), b"%d" % number)
        except MaybeStored:
            await asyncio.sleep(0.01)


async def test_the_first_of_concurrent_results_counts_in_a_cluster(tmp_path: Path) -> None:
    async with deployed(tmp_path, num_servers=3) as url:
        limits = StreamLimits(replicas=3)
        buses = [await connect_nats(url, name="test", wait_s=60.0, limits=limits) for _ in range(NUM_PUBLISHERS)]
        await persistently(lambda: buses[0].ensure_pool(POOL))
        winners: list[bytes] = []
        for index in range(NUM_TASKS):
            is_first = await asyncio.gather(*(first_result(bus, index, number) for number, bus in enumerate(buses)))
            assert sum(is_first) == 1
            winners.append(b"%d" % is_first.index(True))
        found: list[bytes] = []
        async with aclosing(buses[1].results(POOL, "load")) as results:
            while len(found) < NUM_TASKS:
                found += [stored.data for stored in await next_of(results)]
        assert found == winners
        assert await buses[2].num_results(POOL, "load") == NUM_TASKS
        for bus in buses:
            await bus.close()
