"""A CPU slot uses its share of a core and no more."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle, pause_s


@given(
    cpu_s=st.floats(0, 10),
    waited_s=st.floats(0, 10),
    cpu_share=st.floats(0.01, 1, exclude_max=True),
)
def test_pause_brings_the_share_down_and_is_no_longer_than_needed(cpu_s, waited_s, cpu_share):
    wall_s = cpu_s + waited_s
    pause = pause_s(cpu_s=cpu_s, wall_s=wall_s, cpu_share=cpu_share)
    assert pause >= 0
    assert cpu_s <= cpu_share * (wall_s + pause) * (1 + 1e-9)
    assert pause == 0 or cpu_s == pytest.approx(cpu_share * (wall_s + pause))


class Machine:
    """Clocks that advance by the work of a process."""

    def __init__(self) -> None:
        self.cpu_s = self.wall_s = 0.0

    def work(self, seconds: float) -> None:
        self.cpu_s += seconds
        self.wall_s += seconds

    def sleep(self, seconds: float) -> None:
        self.wall_s += seconds


def throttled(machine: Machine, cpu_share: float) -> CpuThrottle:
    return CpuThrottle(
        cpu_share,
        cpu_clock=lambda: machine.cpu_s,
        wall_clock=lambda: machine.wall_s,
        sleep=machine.sleep,
    )


@given(steps_s=st.lists(st.floats(0.001, 1), min_size=1, max_size=20))
def test_throttled_work_uses_its_share_of_the_time(steps_s):
    machine = Machine()
    cpu_throttle = throttled(machine, 0.2)
    for step_s in steps_s:
        machine.work(step_s)
        cpu_throttle.sleep_off_excess()
    assert machine.cpu_s == pytest.approx(0.2 * machine.wall_s)


def test_waiting_time_earns_no_later_burst():
    machine = Machine()
    cpu_throttle = throttled(machine, 0.5)
    machine.sleep(100)
    cpu_throttle.sleep_off_excess()
    machine.work(1)
    cpu_throttle.sleep_off_excess()
    assert machine.wall_s == 102


def test_a_whole_core_is_not_throttled():
    machine = Machine()
    cpu_throttle = throttled(machine, 1.0)
    machine.work(1)
    cpu_throttle.sleep_off_excess()
    assert machine.wall_s == 1


def test_the_real_clocks_agree():
    """The ratio holds for any speed of the machine."""
    cpu_throttle = CpuThrottle(0.25)
    cpu_start_s, wall_start_s = time.process_time(), time.monotonic()
    for _ in range(5):
        until_s = time.process_time() + 0.004
        while time.process_time() < until_s:
            pass
        cpu_throttle.sleep_off_excess()
    cpu_s, wall_s = time.process_time() - cpu_start_s, time.monotonic() - wall_start_s
    assert 0 < cpu_s <= 0.3 * wall_s


def test_work_between_two_generations_is_not_paid_back():
    machine = Machine()
    cpu_throttle = throttled(machine, 0.2)
    machine.work(3.4)  # while it waits for the survivors of a lost node
    cpu_throttle.restart()
    machine.work(0.01)
    cpu_throttle.sleep_off_excess()
    assert machine.wall_s == pytest.approx(3.4 + 0.05)
