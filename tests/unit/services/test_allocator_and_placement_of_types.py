"""Given a pool of two GPU types, shares stay within a type, and so do the GPUs of each job."""

from collections import Counter
from typing import Any

import pytest

from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.allocator.policy import wake_at_s
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import SubmitJob
from testbed.histories import NOW_S, History, best_effort, submit
from tests.support.two_types import due_in, two_types, type_of
from tests.support.worker_events import crashed, lost, progressed, throughput

UNKNOWN = {"model_name": "unknown", **due_in(9_000.0)}


def planned(history: History, now_s: float = NOW_S) -> tuple[Any, ...]:
    """The allocation and all placements that follow; returns the allocator's events."""
    allocated = history.decided(ALLOCATOR, now_s=now_s)
    while history.decided(PLACEMENT, now_s=now_s):
        pass
    return allocated


def nodes_of(history: History, job_id: str) -> tuple[str, ...]:
    return history.state.live_jobs[job_id].nodes


def measured(history: History, rate: float, at_s: float) -> int:
    """The present level of the profiling run of job a ends; returns its number of GPUs."""
    job = history.state.live_jobs["a"]
    history.then(throughput(job, rate, at_s))
    return len(job.gpus)


def test_shares_never_exceed_a_type_and_no_job_spans_types() -> None:
    history = two_types(fast=4, slow=2)
    for number, gpu_type in enumerate(("V100", "P100", "V100", "P100", "V100")):
        history.decided(ADMISSION, SubmitJob(job_id=f"b{number}", tenant="lab", spec=best_effort(gpu_type=gpu_type)))
    (allocated,) = planned(history)
    types = {job_id: type_of(history, job_id) for job_id in history.state.live_jobs}
    assert set(types.values()) == {"", "P100"}
    for gpu_type, node, num_gpus in (("", "node-0", 4), ("P100", "node-1", 2)):
        jobs = [job_id for job_id, its in types.items() if its == gpu_type]
        assert sum(allocated.num_gpus_by_job.get(job_id, 0) for job_id in jobs) == num_gpus
        assert {nodes_of(history, job_id) for job_id in jobs} <= {(node,), ()}


@pytest.mark.parametrize("min_gpus", [1, 2])
def test_a_profiling_run_continues_on_the_next_type_at_once(min_gpus: int) -> None:
    history = two_types()
    history.decided(ADMISSION, submit("a", min_gpus=min_gpus, **UNKNOWN))
    levels = list[tuple[str, int]]()
    for at_s in range(1, 9):
        now_s = NOW_S + at_s
        planned(history, now_s)
        if wake_at_s(history.state) == now_s:  # complete on one type
            (allocated,) = planned(history, now_s)
            assert allocated.profiled_on == {"a": "P100"}
        if history.decided(ADMISSION, now_s=now_s):
            break
        (node,) = nodes_of(history, "a")
        levels.append((node, measured(history, float(at_s), now_s)))
    on_each = [level for level in (1, 2, 4) if level >= min_gpus]
    assert levels == [*(("node-0", level) for level in on_each), *(("node-1", level) for level in on_each)]
    assert history.state.live_jobs["a"].promised


def test_profiling_runs_of_two_types_are_beside_each_other() -> None:
    """Those of one profile begin one after the other: the first one chooses its virtual nodes."""
    history, other = two_types(), UNKNOWN | {"model_name": "another"}
    history.decided(ADMISSION, submit("a", gpu_type="V100", **UNKNOWN), submit("b", gpu_type="P100", **other))
    planned(history)
    assert (nodes_of(history, "a"), nodes_of(history, "b")) == (("node-0",), ("node-1",))


def test_a_job_leaves_the_gpus_of_another_type_before_others_get_them() -> None:
    history = two_types()
    history.decided(ADMISSION, submit("a", gpu_type="P100", **UNKNOWN))
    planned(history)
    assert nodes_of(history, "a") == ("node-1",)
    history.then(
        events.AllocationDecided(
            num_gpus_by_job={"a": 1}, valid_until_s=None, profiled_on={"a": "V100"}, at_s=NOW_S + 1.0
        )
    )
    (left,) = history.decided(PLACEMENT, now_s=NOW_S + 1.0)
    assert [(placed.job_id, placed.gpus) for placed in left.placements] == [("a", ())]
    history.decided(PLACEMENT, now_s=NOW_S + 1.0)
    assert nodes_of(history, "a") == ("node-0",)


def test_one_type_may_probe_while_another_does_not() -> None:
    """At most one scaling probe begins in a decision."""
    curve = {1: 1.0, 2: 1.9}
    history = two_types(curves={"other/b64": curve}, stop_free=True)
    for key in ("unknown/b64", "unknown/b64@P100"):
        history.then(events.ProfileCompleted(profile_key=key, iterations_per_s=curve, measured_to=2, at_s=NOW_S))
    history.decided(ADMISSION, *(submit(name, gpu_type=its, **UNKNOWN) for name, its in (("a", "V100"), ("b", "P100"))))
    planned(history)
    for job_id in ("a", "b"):
        history.started(job_id, at_s=NOW_S + 2.0)
    probes = list[str | None]()
    for number in range(2):
        history.then(events.NodeJoined(node_id=f"x{number}", incarnation="x", num_gpus=1, device="cpu", at_s=NOW_S))
        (allocated,) = planned(history, NOW_S + 3.0 + number)
        probes.append(allocated.probes)
    assert probes == ["a", "b"]


# --- a change of the GPU type ---------------------------------------------------------------------------


def moved(history: History, job_id: str) -> None:
    history.then(events.GpuTypeChanged(job_id=job_id, gpu_type="P100", explanation="", at_s=NOW_S + 5.0))


def on_two_of_four(*job_ids: str, **config: Any) -> History:
    """Jobs without a promise that train on two V100 each."""
    history = two_types(stop_free=True, **config)
    for job_id in job_ids:
        history.decided(ADMISSION, SubmitJob(job_id=job_id, tenant="lab", spec=best_effort(gpu_type="V100")))
    planned(history)
    for job_id in job_ids:
        history.started(job_id, at_s=NOW_S + 2.0)
    return history


def test_workers_train_until_their_job_has_gpus_of_the_other_type_and_pass_its_state_on() -> None:
    history = on_two_of_four("a")
    before = history.state.live_jobs["a"].gpus
    moved(history, "a")
    assert history.decided(PLACEMENT, now_s=NOW_S + 5.0) == (), "the allocator does not know of it yet"
    a = history.state.live_jobs["a"]
    assert (a.training, a.own_gpus, a.added_gpus) == (True, (), before)
    planned(history, NOW_S + 5.0)
    a = history.state.live_jobs["a"]
    assert a.previous_generation is not None
    assert (a.previous_generation.gpus, a.training_generation, a.stopping) == (before, 1, ())
    assert {gpu.node_id for gpu in a.gpus} == {"node-1"}


def test_gpus_that_a_moving_job_leaves_to_another_job_do_not_stop_it() -> None:
    """It takes GPUs that no job has, so it waits for none, and the other job waits for it."""
    history = on_two_of_four("a", "b")
    left = set(history.state.live_jobs["a"].gpus)
    moved(history, "a")
    planned(history, NOW_S + 5.0)
    a, b = history.state.live_jobs["a"], history.state.live_jobs["b"]
    assert left <= set(b.gpus)
    assert all(job.previous_generation is not None and not job.stopping for job in (a, b))


def test_other_jobs_do_not_get_the_gpus_on_which_a_moving_job_trains() -> None:
    """An allocation from before the move takes them from it, and is not placed yet."""
    history = on_two_of_four("a", "b")
    shares = {"a": 0, "b": 4}
    history.then(events.AllocationDecided(num_gpus_by_job=shares, valid_until_s=None, at_s=NOW_S + 4.0))
    moved(history, "a")
    assert history.decided(PLACEMENT, now_s=NOW_S + 5.0) == ()
    planned(history, NOW_S + 6.0)
    on = {job_id: Counter(gpu.node_id for gpu in job.gpus) for job_id, job in history.state.live_jobs.items()}
    assert on == {"a": {"node-1": 4}, "b": {"node-0": 4}}


def test_a_moving_job_that_takes_gpus_of_a_job_stops() -> None:
    """Otherwise two jobs that exchange GPUs would wait for each other."""
    history = on_two_of_four("a", "b")
    history.decided(ADMISSION, SubmitJob(job_id="c", tenant="lab", spec=best_effort(gpu_type="P100")))
    planned(history, NOW_S + 3.0)
    history.started("c", at_s=NOW_S + 4.0)
    assert len(history.state.live_jobs["c"].gpus) == 4
    moved(history, "a")
    planned(history, NOW_S + 5.0)
    a = history.state.live_jobs["a"]
    assert (a.previous_generation, [each.node_id for each in a.stopping]) == (None, ["node-0"])


def test_a_moving_job_without_gpus_of_the_other_type_stops() -> None:
    history = on_two_of_four("a")
    history.then(lost("node-1", "two"))
    moved(history, "a")
    planned(history, NOW_S + 5.0)
    a = history.state.live_jobs["a"]
    assert (a.gpus, a.previous_generation, [each.node_id for each in a.stopping]) == ((), None, ["node-0"])


@pytest.mark.parametrize(("generation", "trains"), [(1, False), (2, True)])
def test_after_a_loss_in_a_move_those_that_have_the_state_move_again(generation: int, trains: bool) -> None:
    """A worker on the old type is lost, or one on the new type."""
    history = on_two_of_four("a")
    before = history.state.live_jobs["a"].gpus
    moved(history, "a")
    planned(history, NOW_S + 5.0)
    node = "node-0" if generation == 1 else "node-1"
    history.then(crashed(generation, node=node, rank=0))
    planned(history, NOW_S + 6.0)
    a = history.state.live_jobs["a"]
    assert a.previous_generation is not None
    assert (a.generation, a.previous_generation.trains) == (3, trains)
    assert a.previous_generation.surviving == (before if trains else before[1:])
    assert {gpu.node_id for gpu in a.gpus} == {"node-1"}


def test_when_all_workers_on_the_old_type_are_lost_the_job_starts_from_its_checkpoint() -> None:
    history = on_two_of_four("a").then(progressed(1, 20, checkpoint=10))
    moved(history, "a")
    planned(history, NOW_S + 5.0)
    history.then(lost("node-0", "one"))
    planned(history, NOW_S + 6.0)
    a = history.state.live_jobs["a"]
    assert (a.previous_generation, a.broken, a.iteration) == (None, False, 10)
    assert {gpu.node_id for gpu in a.gpus} == {"node-1"}
