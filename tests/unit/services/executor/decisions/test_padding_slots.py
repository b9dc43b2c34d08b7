"""Given this pool and these workers, padding loads may use these GPUs of the node."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.services.executor.decisions.local_events_and_actions import (
    NO_PADDING_SLOTS,
    ContactLost,
    ContactRestored,
    ShutDownRequested,
    StartWorker,
    UsePaddingSlots,
)
from elasticflow.shared.messages import events
from elasticflow.shared.messages.load_spec import LoadSpec
from testbed.histories import NOW_S
from tests.support.executor_node import ExecutorNode

OPENED = events.LoadOpened(
    load_id="proteins", tenant="lab", spec=LoadSpec(task_function="jobs.fold:fold", task_s=1.0), at_s=NOW_S
)


def slots(node: ExecutorNode) -> tuple[int, ...]:
    """As last ordered."""
    return node.state.padding_slots.gpus


def orders(node: ExecutorNode) -> list[Any]:
    return [action for action in node.actions if isinstance(action, UsePaddingSlots | StartWorker)]


def test_without_loads_nothing_is_ordered() -> None:
    node = ExecutorNode().training()
    assert not node.actions
    assert node.state.padding_slots == NO_PADDING_SLOTS


def test_idle_gpus_serve_live_loads() -> None:
    node = ExecutorNode().training(2).ledger(OPENED)
    assert slots(node) == (2, 3)
    assert [load.load_id for load in node.state.padding_slots.loads] == ["proteins"]
    node.ledger(events.LoadSealed(load_id="proteins", num_tasks=9, at_s=NOW_S))
    assert node.state.padding_slots.loads[0].num_tasks == 9
    node.ledger(events.LoadFinished(load_id="proteins", num_results=9, at_s=NOW_S))
    assert node.state.padding_slots == NO_PADDING_SLOTS


def test_a_load_runs_only_where_its_needs_are_met() -> None:
    node = ExecutorNode().training(2).ledger(OPENED)
    other = replace(OPENED, load_id="other", spec=replace(OPENED.spec, gpu_type="H100"))
    ordered = node.ledger(other).state.padding_slots
    assert [load.load_id for load in ordered.loads] == ["proteins"]


@pytest.mark.parametrize(
    ("gpu_type", "memory_bytes", "fits"),
    [("", 0, True), ("H100", 80, True), ("V100", 0, False), ("", 81, False), ("H100", 81, False)],
)
def test_needs_of_a_load(gpu_type: str, memory_bytes: int, fits: bool) -> None:
    spec = replace(OPENED.spec, gpu_type=gpu_type, memory_bytes=memory_bytes)
    assert spec.fits("H100", 80) is fits
    assert spec.fits(gpu_type, 0), "unknown memory may suffice"


def test_tenants_have_the_weights_of_the_pools_configuration() -> None:
    node = ExecutorNode().training().ledger(OPENED)
    config = replace(node.state.pool.config, padding_weights={"lab": 2.0})
    node.ledger(events.PoolConfigured(config=config, at_s=NOW_S))
    assert node.state.padding_slots.weights == {"lab": 2.0}


def test_a_placement_ends_runners_before_its_workers_start() -> None:
    node = ExecutorNode().settle().ledger(OPENED).admit().forget()
    node.place("node-0:1", "node-0:2")
    first, *others = orders(node)
    assert isinstance(first, UsePaddingSlots)
    assert first.gpus == (0, 3)
    assert [type(order) for order in others] == [StartWorker] * 2


def test_a_gpu_is_free_again_when_its_worker_is_gone() -> None:
    node = ExecutorNode().training().ledger(OPENED)
    node.ledger(events.JobCancelled(job_id="a", reason="", at_s=NOW_S))
    assert slots(node) == (1, 2, 3), "by the ledger it is idle, but its worker still runs"
    node.ends()
    assert slots(node) == (0, 1, 2, 3)


def test_nothing_runs_without_contact_nor_during_a_shutdown() -> None:
    node = ExecutorNode().settle().ledger(OPENED)
    assert slots(node) == (0, 1, 2, 3)
    node.note(ContactLost(silence_s=9.0))
    assert slots(node) == ()
    node.note(ContactRestored())
    assert slots(node) == (0, 1, 2, 3)
    node.note(ShutDownRequested())
    assert slots(node) == ()


def test_a_node_that_the_ledger_has_lost_serves_no_load() -> None:
    node = ExecutorNode().settle().ledger(OPENED)
    node.ledger(events.NodeLost(node_id="node-0", incarnation="run-0", reason="silent", at_s=NOW_S))
    ended = [action.gpus for action in node.actions if isinstance(action, UsePaddingSlots)]
    assert ended[-2:] == [(), (0, 1, 2, 3)], "it loses all of them, and joins anew"
