"""Hand-outs to random slots: needs are met, shares follow the weights, and no slot stays empty while a task fits."""

import heapq
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.scheduling.padding.cost_model import TaskCost
from elasticflow.shared.scheduling.padding.hand_out import (
    ActiveLoad,
    Bundle,
    HandOutState,
    IdleSlot,
    TaskNeeds,
    after_bundle,
    after_hand_out,
    after_opening,
    hand_out,
)
from elasticflow.simulator.padding.load_simulation import jain_index
from tests.support.example_specs import examples

TYPES = ("A100", "V100")
MANY = 10**9  # tasks, so that a tenant stays backlogged
COSTS = st.builds(
    TaskCost,
    task_s=st.sampled_from((0.01, 0.1, 0.7, 3.0)),
    overhead_s=st.sampled_from((0.0, 0.01, 0.3)),
    start_stop_s=st.sampled_from((0.0, 0.05, 2.0)),
)
NEEDS = st.builds(
    TaskNeeds,
    gpu_type=st.sampled_from(("", *TYPES)),
    gpu_memory_bytes=st.integers(0, 3),
    cpu_cores=st.sampled_from((0.0, 0.5, 2.0)),
)
LOADS = st.lists(
    st.builds(
        ActiveLoad,
        load_id=st.sampled_from("abcdef"),
        tenant=st.sampled_from(("x", "y", "z")),
        opened_at_s=st.integers(0, 3).map(float),
        num_waiting=st.integers(0, 20),
        needs=NEEDS,
        cost=COSTS | st.none(),
    ),
    max_size=6,
    unique_by=lambda load: load.load_id,
)
SLOTS = st.builds(
    IdleSlot,
    gpu_type=st.sampled_from(TYPES),
    gpu_memory_bytes=st.integers(0, 3),
    cpu_cores=st.sampled_from((0.0, 1.0, 4.0)),
    seconds_left=st.none() | st.floats(0.0, 10.0),
    running_load_id=st.sampled_from(("", *"abcdef")),
    running_s=st.floats(0.0, 100.0),
)


def opened(loads: list[ActiveLoad], weights: Mapping[str, float] | None = None) -> HandOutState:
    state = HandOutState()
    for load in loads:
        state = after_opening(state, load, (weights or {}).get(load.tenant, 1.0))
    return state


def fits(load: ActiveLoad, slot: IdleSlot, num_tasks: int = 1) -> bool:
    """Written anew: so many tasks of the load can run on the slot."""
    needs = load.needs
    if load.num_waiting < num_tasks or (needs.gpu_type and needs.gpu_type != slot.gpu_type):
        return False
    if needs.gpu_memory_bytes > slot.gpu_memory_bytes or needs.cpu_cores > slot.cpu_cores:
        return False
    if slot.seconds_left is None or load.cost is None:
        return True
    start_s = 0.0 if slot.running_load_id == load.load_id else load.cost.start_stop_s
    return start_s + num_tasks * load.cost.with_overhead_s <= slot.seconds_left + 1e-6


@given(LOADS, st.lists(SLOTS, max_size=20))
def test_bundles_fit_their_slots_and_no_slot_stays_empty_while_a_task_fits(
    loads: list[ActiveLoad], slots: list[IdleSlot]
) -> None:
    state = opened(loads)
    for slot in slots:
        bundle = hand_out(state, slot)
        if bundle is None:
            assert not any(_clearly_fits(load, slot) for load in state.loads.values())
            continue
        load = state.loads[bundle.load_id]
        assert fits(load, slot, bundle.num_tasks)
        assert bundle.tenant == load.tenant
        state = after_hand_out(state, bundle)
        assert state.loads[bundle.load_id].num_waiting == load.num_waiting - bundle.num_tasks


def _clearly_fits(load: ActiveLoad, slot: IdleSlot) -> bool:
    """A task fits even if the time left is a little shorter, so that rounding does not matter."""
    if slot.seconds_left is not None:
        slot = replace(slot, seconds_left=slot.seconds_left - 1e-5)
    return fits(load, slot)


@given(LOADS, st.permutations(range(6)), SLOTS)
def test_the_order_of_opening_decides_nothing(loads: list[ActiveLoad], order: list[int], slot: IdleSlot) -> None:
    shuffled = [loads[index] for index in order if index < len(loads)]
    assert hand_out(opened(loads), slot) == hand_out(opened(shuffled), slot)


def given_by_minute(
    weights: Mapping[str, float], costs: Mapping[str, TaskCost], num_slots: int, minutes: int
) -> list[dict[str, float]]:
    """GPU-seconds of each tenant in each minute, with one endless load for each tenant on slots that stay idle."""
    loads = [
        ActiveLoad(load_id=tenant, tenant=tenant, opened_at_s=0.0, num_waiting=MANY, cost=costs[tenant])
        for tenant in weights
    ]
    state, given_s = opened(loads, weights), [defaultdict[str, float](float) for _ in range(minutes)]
    running: dict[int, tuple[str, float]] = {}  # by slot: the load of its runner, and when that began
    free: list[tuple[float, int, Bundle | None, float]] = [(0.0, slot, None, 0.0) for slot in range(num_slots)]
    while free[0][0] < 60.0 * minutes:
        now_s, slot, ended, held_s = heapq.heappop(free)
        if ended is not None:
            cost = costs[ended.load_id]
            state = after_bundle(state, ended, num_done=ended.num_tasks, held_s=held_s, cost=cost)
        load_id, since_s = running.get(slot, ("", 0.0))
        bundle = hand_out(state, IdleSlot(running_load_id=load_id, running_s=now_s - since_s))
        assert bundle is not None
        if bundle.starts_runner:
            running[slot] = (bundle.load_id, now_s)
        cost = costs[bundle.load_id]
        held_s = bundle.num_tasks * cost.with_overhead_s + cost.start_stop_s * bundle.starts_runner
        state = after_hand_out(state, bundle)
        given_s[int(now_s // 60)][bundle.tenant] += held_s
        heapq.heappush(free, (now_s + held_s, slot, bundle, held_s))
    return [dict(shares) for shares in given_s]


QUICK = st.builds(
    TaskCost,
    task_s=st.sampled_from((0.05, 0.3, 1.0)),
    overhead_s=st.sampled_from((0.0, 0.02)),
    start_stop_s=st.sampled_from((0.0, 0.02, 0.2)),
)
TENANTS: tuple[str, ...] = ("x", "y", "z")


@examples(35)
@given(st.tuples(QUICK, QUICK, QUICK), st.integers(1, 8))
def test_three_backlogged_tenants_of_equal_weight_share_each_minute(
    costs: tuple[TaskCost, TaskCost, TaskCost], num_slots: int
) -> None:
    minutes = given_by_minute(dict.fromkeys(TENANTS, 1.0), dict(zip(TENANTS, costs, strict=True)), num_slots, 3)
    for shares in minutes:
        assert jain_index([shares.get(tenant, 0.0) for tenant in TENANTS]) >= 0.95


@examples(35)
@given(st.tuples(QUICK, QUICK, QUICK), st.integers(1, 8), st.tuples(*[st.sampled_from((1.0, 2.0, 5.0))] * 3))
def test_the_shares_of_backlogged_tenants_follow_their_weights(
    costs: tuple[TaskCost, TaskCost, TaskCost], num_slots: int, weights: tuple[float, float, float]
) -> None:
    weight_of = dict(zip(TENANTS, weights, strict=True))
    for shares in given_by_minute(weight_of, dict(zip(TENANTS, costs, strict=True)), num_slots, 3):
        total_s, total_weight = sum(shares.values()), sum(weights)
        for tenant in TENANTS:
            assert abs(shares.get(tenant, 0.0) / total_s - weight_of[tenant] / total_weight) < 0.07
