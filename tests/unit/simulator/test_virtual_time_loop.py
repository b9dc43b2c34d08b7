"""Virtual time: it passes only while every task waits, jumps from timer to timer, and keeps the order of calls."""

import asyncio

import pytest

from elasticflow.simulator.virtual_time import NothingScheduled, VirtualClock, VirtualTimeLoop

NOW_S = 1_700_000_000.0


async def append_later(loop: VirtualTimeLoop, delay_s: float, seen: list[float]) -> None:
    await asyncio.sleep(delay_s)
    seen.append(loop.now_s - NOW_S)


def test_sleeping_takes_virtual_time_only() -> None:
    loop, seen = VirtualTimeLoop(NOW_S), list[float]()
    for delay_s in (86_400.0, 1.0):
        loop.spawn(append_later(loop, delay_s, seen), "sleeper")
    loop.advance_to(NOW_S + 2.0)
    assert (seen, loop.now_s) == ([1.0], NOW_S + 2.0)
    loop.advance_to(NOW_S + 1e6, lambda: len(seen) == 2)
    assert seen == [1.0, 86_400.0]
    loop.finish()


def test_callbacks_of_one_instant_run_in_the_order_in_which_they_were_set() -> None:
    loop, seen = VirtualTimeLoop(NOW_S), list[int]()
    for number in range(50):
        loop.call_at(NOW_S + 1.0, seen.append, number)
    loop.advance_to(NOW_S + 1.0)
    assert seen == list(range(50))
    loop.finish()


def test_a_timer_is_due_at_its_instant_and_not_before() -> None:
    loop, seen = VirtualTimeLoop(NOW_S), list[float]()
    clock = VirtualClock(loop)

    async def sleeper(at_s: float) -> None:
        await clock.sleep_until(at_s)
        seen.append(clock.now_s() - at_s)

    for number in range(20):
        loop.spawn(sleeper(NOW_S + number * 2.5e-7), "sleeper")
    loop.advance_to(NOW_S + 1.0)
    assert seen == [0.0] * 20
    loop.finish()


def test_settling_runs_what_is_ready_and_lets_no_time_pass() -> None:
    loop, seen = VirtualTimeLoop(NOW_S), list[float]()
    loop.spawn(append_later(loop, 0.0, seen), "now")
    loop.spawn(append_later(loop, 0.1, seen), "later")
    loop.settle()
    assert (seen, loop.now_s) == ([0.0], NOW_S)
    loop.finish()


def test_the_failure_of_a_task_or_callback_stops_the_loop_and_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("task")

    loop = VirtualTimeLoop(NOW_S)
    loop.spawn(fail(), "fails")
    with pytest.raises(ValueError, match="task"):
        loop.advance_to(NOW_S + 1.0)
    loop.after(1.0, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        loop.advance_to(NOW_S + 5.0)
    assert loop.now_s == NOW_S + 1.0
    loop.finish()


def test_a_loop_that_can_never_go_on_says_so() -> None:
    loop = VirtualTimeLoop(NOW_S)
    with pytest.raises(NothingScheduled):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_a_call_in_a_thread_runs_at_once() -> None:
    loop = VirtualTimeLoop(NOW_S)
    assert loop.run_until_complete(asyncio.wait_for(asyncio.to_thread(sum, (1, 2)), 1.0)) == 3
    loop.finish()


def test_a_paused_process_does_nothing_and_goes_on_with_what_became_ready() -> None:
    loop, seen = VirtualTimeLoop(), list[tuple[str, float]]()

    async def beat(name: str, every_s: float) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(repeat(name, every_s))

    async def repeat(name: str, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            seen.append((name, loop.now_s))

    for name, every_s in (("a", 2.0), ("b", 3.0)):
        loop.spawn(beat(name, every_s), name, process=name)
    loop.advance_to(2.5)
    loop.pause("a")
    loop.advance_to(9.5)
    loop.resume("a")
    loop.advance_to(12.0)
    loop.finish()
    assert seen == [("a", 2.0), ("b", 3.0), ("b", 6.0), ("b", 9.0), ("a", 9.5), ("a", 11.5), ("b", 12.0)]


def test_what_is_on_its_way_belongs_to_no_process() -> None:
    loop, seen = VirtualTimeLoop(), list[float]()

    async def send() -> None:
        loop.after(1.0, lambda: seen.append(loop.now_s))

    loop.spawn(send(), "a", process="a")
    loop.settle()
    loop.pause("a")
    loop.advance_to(2.0)
    loop.finish()
    assert seen == [1.0]
