"""Given a pool of two GPU types, idle GPUs of one join jobs of the other where that pays and endangers no promise."""

from typing import Any

import pytest

from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.frozen_values import fast_replace
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import SetGpuLimits, SubmitJob
from elasticflow.shared.scheduling.jobs.scheduler_view import held_num_gpus
from testbed.histories import NOW_S, History, best_effort, spec
from tests.support.two_types import due_in, reserve, two_types, with_step_times
from tests.support.worker_events import joined

BOTH_CARRY = {"": (3, 3, 3, 3), "P100": (1, 1, 1, 1)}  # of 16: a third faster than the four fast GPUs alone


def measured(reproducible: Any = "fast", num_virtual_nodes: int = 16, **pool: Any) -> History:
    """A pool whose jobs switch in 0.2 s, unless `pool` says otherwise."""
    return with_step_times(two_types(**{"resize_cost_s": 0.2} | pool), reproducible, num_virtual_nodes)


def admitted(history: History, job_id: str = "a", now_s: float = NOW_S, **changes: Any) -> History:
    """On V100, unless the changes say otherwise: without a promise, or with the deadline that they name."""
    one = spec(**changes) if "deadline_s" in changes else best_effort(**changes)
    history.decided(ADMISSION, SubmitJob(job_id=job_id, tenant="lab", spec=one), now_s=now_s)
    return history


def without_promise(job_id: str, gpu_type: str = "", **changes: Any) -> events.JobAdmitted:
    """On a type as recorded, whatever admission would choose."""
    return events.JobAdmitted(
        job_id=job_id,
        tenant="lab",
        spec=best_effort(**changes),
        gpu_type=gpu_type,
        gpu_seconds=0.0,
        minimum_satisfactory_share=(),
        deadline_s=None,
        at_s=NOW_S,
    )


def allocated(history: History, now_s: float = NOW_S) -> events.AllocationDecided:
    """The allocation, which placement follows."""
    (event,) = history.decided(POLICY, now_s=now_s)
    while history.decided(PLACEMENT, now_s=now_s):
        pass
    return event


def mixed(history: History, now_s: float = NOW_S) -> dict[str, Any]:
    return dict(allocated(history, now_s).virtual_nodes_by_type)


def test_idle_gpus_of_the_other_type_join_a_job() -> None:
    history = admitted(measured())
    event = allocated(history)
    assert (event.num_gpus_by_job, event.virtual_nodes_by_type) == ({"a": 4}, {"a": BOTH_CARRY})
    job = history.state.live_jobs["a"]
    assert [gpu.node_id for gpu in job.gpus] == ["node-0"] * 4 + ["node-1"] * 4
    assert (job.virtual_nodes_by_rank, job.num_added_gpus) == ((3, 3, 3, 3, 1, 1, 1, 1), 4)


def test_fast_gpus_join_a_job_on_slow_ones_which_then_may_compute_nothing() -> None:
    history = measured(num_virtual_nodes=4, slow=1)
    history.then(without_promise("a", "P100"))
    assert mixed(history) == {"a": {"": (1, 1, 1, 1), "P100": (0,)}}


def test_a_job_without_step_times_or_that_gains_too_little_keeps_one_type() -> None:
    assert mixed(admitted(two_types())) == {}
    assert mixed(admitted(measured(num_virtual_nodes=8))) == {}, "each V100 has 2 of 8 either way"


@pytest.mark.parametrize(
    ("types", "reproducible", "changes", "is_mixed"),
    [
        (("V100", "P100"), "fast", {}, True),
        (("V100", "P100"), "bitwise", {}, False),
        (("V100", "P100"), "bitwise", {"mixed_gpu_types": True}, True),
        (("cpu-1", "cpu-0.5"), "bitwise", {}, True),
        (("cpu-1", "P100"), "bitwise", {}, False),
        (("P100", "cpu-1"), "bitwise", {}, False),
        (("cpu-1", "P100"), "bitwise", {"mixed_gpu_types": True}, True),
        (("P100", "cpu-1"), "bitwise", {"mixed_gpu_types": True}, True),
        (("cpu-1", "P100"), "fast", {}, True),
        (("P100", "cpu-1"), "fast", {}, True),
        (("P100", "cpu-1"), "fast", {"gpu_type": "P100", "mixed_gpu_types": True}, False),
        (("V100", "P100"), "fast", {"gpu_type": "V100"}, False),
        (("V100", "P100"), "fast", {"max_gpus": 4}, False),
    ],
)
def test_who_may_be_mixed(types: Any, reproducible: Any, changes: dict[str, Any], is_mixed: bool) -> None:
    """Bitwise jobs keep their bits, users their type, and jobs their range."""
    history = admitted(measured(reproducible, types=types), **changes)
    event = allocated(history)
    assert event.num_gpus_by_job == {"a": 4}
    assert ("a" in event.virtual_nodes_by_type) == is_mixed


@pytest.mark.parametrize(
    ("max_gpus", "changes", "num_added"),
    [(None, {}, 7), (4, {}, 2), (2, {}, 0), (4, {"mixed_gpu_types": True}, 4), (2, {"mixed_gpu_types": True}, 2)],
)
def test_a_job_has_at_most_its_max_gpus_or_of_each_type_if_its_user_asks_for_mixed_types(
    max_gpus: int | None, changes: dict[str, Any], num_added: int
) -> None:
    history = measured(num_virtual_nodes=64, fast=2, slow=8)
    history.then(without_promise("a", max_gpus=max_gpus, **changes))
    counts = mixed(history).get("a", {})
    assert history.state.live_jobs["a"].num_gpus == 2
    assert len(counts.get("P100", ())) == num_added


def test_an_operators_limit_counts_all_gpus() -> None:
    history = measured(num_virtual_nodes=64, fast=2, slow=8)
    history.then(without_promise("a", mixed_gpu_types=True))
    history.decided(ADMISSION, SetGpuLimits(job_id="a", tenant="lab", max_gpus=4))
    assert [len(counts) for counts in mixed(history)["a"].values()] == [2, 2]


def test_gpus_are_taken_back_for_a_job_of_their_type_and_the_others_stay() -> None:
    history = admitted(measured())
    allocated(history)
    history.started("a", at_s=NOW_S + 1.0)
    admitted(history, "b", NOW_S + 2.0, gpu_type="P100", max_gpus=2)
    event = allocated(history, NOW_S + 2.0)
    assert event.num_gpus_by_job == {"a": 4, "b": 2}
    assert event.virtual_nodes_by_type == {}, "with two more GPUs, a V100 would have 4 of 16 as before"
    a, b = history.state.live_jobs["a"], history.state.live_jobs["b"]
    assert (len(a.gpus), a.virtual_nodes_by_rank, a.num_added_gpus) == (4, (), 0)
    assert {gpu.node_id for gpu in b.gpus} == {"node-1"}


def test_mixed_gpus_stay_while_they_are_idle() -> None:
    history = admitted(measured(slow=5))
    allocated(history)
    history.started("a", at_s=NOW_S + 1.0)
    generation = history.state.live_jobs["a"].generation
    before = history.state.virtual_nodes_by_type
    admitted(history, "b", NOW_S + 2.0, gpu_type="P100", max_gpus=1)
    assert mixed(history, NOW_S + 2.0) == before
    assert history.state.live_jobs["a"].generation == generation
    assert not set(history.state.live_jobs["b"].gpus) & set(history.state.live_jobs["a"].gpus)


def test_a_job_that_does_not_gain_from_others_joins_none_again() -> None:
    history = admitted(measured())
    allocated(history)
    history.started("a", at_s=NOW_S + 1.0)
    slow = events.JobProgressed(
        job_id="a",
        generation=history.state.live_jobs["a"].generation,
        iteration=9,
        iterations_per_s=3.9,  # four V100 alone: 4.0
        checkpoint_iteration=0,
        at_s=NOW_S + 9.0,
    )
    history.then(slow)
    assert mixed(history, NOW_S + 9.0) == {}
    assert history.state.live_jobs["a"].gpus == history.state.live_jobs["a"].own_gpus


@pytest.mark.parametrize(("deadline_in_s", "is_mixed"), [(25.5, False), (40.0, True)])
def test_a_promised_job_is_mixed_only_if_it_can_afford_both_switches(deadline_in_s: float, is_mixed: bool) -> None:
    """On four V100 it takes 25 s and 0.2 s for its start. To join and to leave others takes 0.4 s more."""
    history = admitted(measured(), **due_in(deadline_in_s))
    assert ("a" in mixed(history)) == is_mixed
    assert history.state.live_jobs["a"].promised


def test_each_plan_leaves_a_promised_job_the_time_to_leave() -> None:
    history = admitted(measured(), **due_in(40.0))
    allocated(history)
    a = history.state.live_jobs["a"]
    alone = fast_replace(a, gpus=a.own_gpus, num_added_gpus=0)
    assert (held_num_gpus(a), held_num_gpus(alone)) == (0, 4)
    assert held_num_gpus(fast_replace(a, spec=best_effort())) == 4, "no promise to keep"


def test_a_job_that_soon_ends_or_gpus_that_are_soon_needed_are_left_alone() -> None:
    assert mixed(admitted(measured(resize_cost_s=5.0))) == {}, "it gains a third for 19 s, and loses 10 s"
    history = admitted(measured(resize_cost_s=5.0), max_iterations=1_000)
    assert mixed(history) == {"a": BOTH_CARRY}


def test_gpus_in_reserve_or_of_quotes_join_no_job() -> None:
    history = measured(reserve_nodes=1).then(joined("three", "node-2", num_gpus=4, gpu_type="P100"))
    assert mixed(admitted(history)) == {"a": BOTH_CARRY}, "four of eight P100 are the reserve"
    history = measured()
    history.decided(ADMISSION, reserve(gpu_type="P100", **due_in(51.0)))
    assert mixed(admitted(history)) == {}


def test_no_gpus_join_while_a_job_of_their_type_is_profiled() -> None:
    history = admitted(measured())
    history.decided(
        ADMISSION, SubmitJob(job_id="new", tenant="lab", spec=best_effort(model_name="new", gpu_type="P100"))
    )
    assert mixed(history) == {}


def reported(history: History, rate: float, iteration: int, at_s: float) -> History:
    """Job a reports its speed in its present generation."""
    generation = history.state.live_jobs["a"].generation
    progress = {"iteration": iteration, "iterations_per_s": rate, "at_s": NOW_S + at_s}
    return history.then(events.JobProgressed(job_id="a", generation=generation, **progress))


def test_the_speed_of_a_mix_is_kept_and_decides_whether_another_job_is_joined() -> None:
    """The first job trains with four GPUs of each type as fast as on its own four alone, so that it does not pay."""
    history = admitted(measured())
    allocated(history)
    history.started("a", at_s=NOW_S + 1.0)
    reported(history, 2.0, 5, 3.0)
    assert not history.state.curves["linear/b64"].mixes, "it has just begun"
    reported(history, 4.05, 10, 7.0)
    (mix,) = history.state.curves["linear/b64"].mixes
    assert (mix.virtual_nodes, mix.iterations_per_s) == (BOTH_CARRY, 4.05)
    reported(history, 4.0, 15, 9.0)
    assert history.state.curves["linear/b64"].mixes == (mix,), "no correction without a change"
    history.then(events.JobCancelled(job_id="a", reason="", at_s=NOW_S + 10.0))
    admitted(history, "b", NOW_S + 11.0)
    assert mixed(history, NOW_S + 11.0) == {}


def test_a_known_mix_is_corrected_half_way() -> None:
    history = admitted(measured())
    allocated(history)
    history.started("a", at_s=NOW_S + 1.0)
    for number, rate in enumerate((5.0, 3.0)):
        reported(history, rate, 10 + number, 7.0 + 20.0 * number)
    (mix,) = history.state.curves["linear/b64"].mixes
    assert mix.iterations_per_s == 4.0
