import asyncio

from elasticflow.shared.runtime.process.clock import SystemClock, fresh_id
from tests.support.virtual_clock import VirtualClock


async def test_sleepers_wake_in_the_order_of_their_instants_then_of_their_calls() -> None:
    clock = VirtualClock(100.0)
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, at_s: float) -> None:
        await clock.sleep_until(at_s)
        woken.append((name, clock.now_s()))

    sleepers = [asyncio.create_task(sleeper(*who)) for who in (("late", 130.0), ("a", 110.0), ("b", 110.0))]
    await sleeper("past", 99.0)
    assert clock.next_wake_s() is None
    await asyncio.sleep(0)
    assert clock.next_wake_s() == 110.0
    await clock.advance_to(120.0)
    assert clock.now_s() == 120.0
    assert woken == [("past", 100.0), ("a", 110.0), ("b", 110.0)]
    await clock.advance_to(130.0)
    await asyncio.gather(*sleepers)
    assert woken[-1] == ("late", 130.0)


async def test_a_sleeper_may_go_to_sleep_again_on_the_way() -> None:
    clock = VirtualClock()
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await clock.sleep_until(clock.now_s() + 10.0)
            ticks.append(clock.now_s())

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    await clock.advance_to(35.0)
    assert ticks == [10.0, 20.0, 30.0]
    ticking.cancel()
    await asyncio.gather(ticking, return_exceptions=True)
    await clock.advance_to(100.0)
    assert len(ticks) == 3


async def test_the_system_clock_sleeps_until_the_instant() -> None:
    clock = SystemClock()
    at_s = clock.now_s() + 0.01
    await clock.sleep_until(at_s)
    assert clock.now_s() >= at_s


def test_fresh_ids_differ() -> None:
    assert len({fresh_id() for _ in range(1000)}) == 1000
