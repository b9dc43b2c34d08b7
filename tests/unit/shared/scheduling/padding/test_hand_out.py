"""The hand-out policy: given loads, shares and a slot, which bundle."""

from dataclasses import replace

import pytest

from elasticflow.shared.scheduling.padding.cost_model import TaskCost
from elasticflow.shared.scheduling.padding.hand_out import (
    TARGET_BUNDLE_S,
    ActiveLoad,
    Bundle,
    HandOutState,
    IdleSlot,
    TaskNeeds,
    after_adding,
    after_bundle,
    after_closing,
    after_hand_out,
    after_opening,
    after_use_elsewhere,
    hand_out,
)

SHORT, LONG = (
    TaskCost(task_s=0.1, overhead_s=0.025, start_stop_s=1.0),
    TaskCost(task_s=10.9, overhead_s=2.8, start_stop_s=7.0),
)
GIB = 1 << 30
SLOT = IdleSlot(gpu_type="A100", gpu_memory_bytes=40 * GIB, cpu_cores=8)


def load(load_id: str, tenant: str = "lab", num_waiting: int = 100, **fields: object) -> ActiveLoad:
    values = {"opened_at_s": 0.0, "cost": SHORT, **fields}
    return ActiveLoad(load_id=load_id, tenant=tenant, num_waiting=num_waiting, **values)  # pyright: ignore


def state(*loads: ActiveLoad, **weights: float) -> HandOutState:
    opened = HandOutState()
    for one in loads:
        opened = after_opening(opened, one, weights.get(one.tenant, 1.0))
    return opened


def chosen(found: Bundle | None) -> str:
    return found.load_id if found is not None else ""


@pytest.mark.parametrize(
    ("needs", "fits"),
    [
        (TaskNeeds(), True),
        (TaskNeeds(gpu_type="A100", gpu_memory_bytes=40 * GIB, cpu_cores=8), True),
        (TaskNeeds(gpu_type="V100"), False),
        (TaskNeeds(gpu_memory_bytes=40 * GIB + 1), False),
        (TaskNeeds(cpu_cores=8.5), False),
    ],
)
def test_a_slot_gets_only_loads_whose_needs_it_meets(needs: TaskNeeds, fits: bool) -> None:
    assert (hand_out(state(load("a", needs=needs)), SLOT) is not None) == fits


def test_a_bundle_lasts_about_the_target_or_one_task() -> None:
    short, long = hand_out(state(load("a")), SLOT), hand_out(state(load("a", cost=LONG)), SLOT)
    assert short is not None
    assert long is not None
    assert short.num_tasks == TARGET_BUNDLE_S / SHORT.with_overhead_s == 4
    assert long.num_tasks == 1
    assert long.charged_s == 70.0  # for which its runner keeps the slot


@pytest.mark.parametrize(
    ("seconds_left", "num_tasks"), [(1.0, 0), (1.1, 0), (1.125, 1), (1.3, 2), (9.0, 4), (None, 4), (0.0, 0), (-1.0, 0)]
)
def test_a_bundle_never_holds_more_than_fits_the_time_left(seconds_left: float | None, num_tasks: int) -> None:
    found = hand_out(state(load("a")), replace(SLOT, seconds_left=seconds_left))
    assert (found.num_tasks if found is not None else 0) == num_tasks


def test_a_runner_that_runs_need_not_start_again() -> None:
    running = replace(SLOT, seconds_left=0.3, running_load_id="a", running_s=30.0)
    found = hand_out(state(load("a")), running)
    assert found is not None
    assert (found.num_tasks, found.starts_runner, found.charged_s) == (2, False, pytest.approx(0.25))


def test_a_shorter_task_goes_where_the_first_load_does_not_fit() -> None:
    both = state(load("a", cost=LONG), load("b"))
    assert chosen(hand_out(both, SLOT)) == "a"
    assert chosen(hand_out(both, replace(SLOT, seconds_left=5.0))) == "b"


def test_the_oldest_load_of_a_tenant_is_first_then_the_id() -> None:
    assert chosen(hand_out(state(load("a", opened_at_s=2.0), load("b", opened_at_s=1.0)), SLOT)) == "b"
    assert chosen(hand_out(state(load("b"), load("a")), SLOT)) == "a"


def test_a_load_of_unknown_cost_gets_one_task_until_it_is_measured() -> None:
    before = state(load("a", cost=None))
    bundle = hand_out(before, replace(SLOT, seconds_left=0.1))
    assert bundle is not None
    assert bundle.num_tasks == 1
    after = after_bundle(after_hand_out(before, bundle), bundle, num_done=1, held_s=1.125, cost=SHORT)
    assert after.loads["a"].cost == SHORT
    assert after.tenants["lab"].given_s == pytest.approx(1.125)


def test_a_runner_that_lies_about_its_times_costs_its_load_alone() -> None:
    """An error here would end the runners of all loads of the node."""
    handed_out = state(load("a", cost=replace(SHORT, task_s=1e11)))
    many = Bundle(load_id="a", tenant="lab", num_tasks=1_000, starts_runner=False, charged_s=1.0)
    after = after_bundle(handed_out, many, num_done=1_000, held_s=1.0, cost=replace(SHORT, task_s=1e-6))
    assert after.loads["a"].cost == replace(SHORT, task_s=1e-6)


def test_measured_tasks_move_the_estimate_by_their_number() -> None:
    measured = replace(SHORT, task_s=0.2)
    by_num: dict[int, float] = {}
    for num_done in (1, 4):
        before = state(load("a"))
        bundle = hand_out(before, SLOT)
        assert bundle is not None
        after = after_bundle(after_hand_out(before, bundle), bundle, num_done=num_done, held_s=1.0, cost=measured)
        cost = after.loads["a"].cost
        assert cost is not None
        by_num[num_done] = cost.task_s
    assert by_num[1] == pytest.approx(0.1 + 0.2 * 0.1)
    assert by_num[4] == pytest.approx(0.1 + (1 - 0.8**4) * 0.1)


def test_preempted_tasks_wait_again_and_the_tenant_pays_what_it_held() -> None:
    before = state(load("a"), lab=2.0)
    bundle = hand_out(before, SLOT)
    assert bundle is not None
    handed_out = after_hand_out(before, bundle)
    assert handed_out.loads["a"].num_waiting == 96
    after = after_bundle(handed_out, bundle, num_done=1, held_s=1.2, cost=SHORT)
    assert after.loads["a"].num_waiting == 99
    assert (after.tenants["lab"].given_s, after.tenants["lab"].virtual_s) == pytest.approx((1.2, 0.6))


def test_a_closed_load_hands_out_nothing_and_its_running_tasks_are_charged() -> None:
    before = state(load("a"))
    bundle = hand_out(before, SLOT)
    assert bundle is not None
    closed = after_closing(after_hand_out(before, bundle), "a")
    assert hand_out(closed, SLOT) is None
    after = after_bundle(closed, bundle, num_done=0, held_s=3.0, cost=None)
    assert after.tenants["lab"].given_s == pytest.approx(3.0)
    assert hand_out(after, SLOT) is None


def served(state: HandOutState, load_id: str, held_s: float) -> HandOutState:
    """After one task of this load, which held its slot so long."""
    bundle = Bundle(
        load_id=load_id,
        tenant=state.loads[load_id].tenant,
        num_tasks=1,
        starts_runner=True,
        charged_s=held_s,
    )
    return after_bundle(after_hand_out(state, bundle), bundle, num_done=1, held_s=held_s, cost=SHORT)


def test_the_tenant_with_the_least_seconds_over_its_weight_is_first() -> None:
    both = state(load("a", "x"), load("b", "y"), x=3.0, y=1.0)
    assert chosen(hand_out(served(served(both, "a", 20.0), "b", 10.0), SLOT)) == "a"
    assert chosen(hand_out(served(served(both, "a", 40.0), "b", 10.0), SLOT)) == "b"


def test_gpu_seconds_that_other_executors_gave_count_too() -> None:
    both = state(load("a", "x"), load("b", "y"))
    elsewhere = after_use_elsewhere(both, "x", 30.0)
    assert (chosen(hand_out(both, SLOT)), chosen(hand_out(elsewhere, SLOT))) == ("a", "b")
    assert elsewhere.tenants["x"].given_s == 30.0


def test_a_tenant_that_was_idle_gets_no_credit() -> None:
    both = state(load("a", "x"), load("b", "y", num_waiting=0))
    busy = served(both, "a", 3600.0)
    back = after_adding(busy, "b", 100)
    assert back.tenants["y"].virtual_s == back.tenants["x"].virtual_s == 3600.0
    assert chosen(hand_out(served(back, "b", 1.0), SLOT)) == "a"


def test_the_order_of_return_after_a_common_pause_gives_no_credit_either() -> None:
    alone = state(load("a", "x", num_waiting=2), load("b", "y", num_waiting=0))
    done = served(served(alone, "a", 3600.0), "a", 1.0)
    back = after_adding(after_adding(done, "b", 10), "a", 10)
    assert back.tenants["y"].virtual_s == 3600.0
    assert back.tenants["x"].virtual_s == 3601.0


def test_a_returning_tenant_is_compared_only_with_those_that_compete_for_its_gpus() -> None:
    a100, v100 = TaskNeeds(gpu_type="A100"), TaskNeeds(gpu_type="V100")
    three = state(load("a", "x", needs=a100), load("b", "y", needs=v100), load("c", "z", 0, needs=a100))
    three = served(served(three, "a", 500.0), "b", 20.0)
    assert after_adding(three, "c", 1).tenants["z"].virtual_s == 500.0


def test_a_runner_keeps_its_load_until_its_start_is_a_tenth_of_its_time() -> None:
    both = served(state(load("a", "x"), load("b", "y")), "a", 5.0)
    running = replace(SLOT, running_load_id="a")
    assert chosen(hand_out(both, replace(running, running_s=9.9))) == "a"
    assert chosen(hand_out(both, replace(running, running_s=10.0))) == "b"
    without_b = after_closing(both, "b")
    assert chosen(hand_out(without_b, replace(running, running_s=10.0))) == "a"


def test_a_tenant_that_is_behind_does_not_get_every_slot_at_once() -> None:
    both, found = served(state(load("a", "x"), load("b", "y")), "a", 5.0), list[str]()
    for _ in range(4):
        bundle = hand_out(both, SLOT)
        assert bundle is not None
        found.append(bundle.load_id)
        both = after_hand_out(both, bundle)
    assert found == ["b", "a", "b", "a"]
