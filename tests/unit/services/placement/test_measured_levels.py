"""Profiling runs measure a number of GPUs on the level of connection that a promise counts on (docs/adr/0122)."""

from typing import Any

from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import CancelJob, Command, SubmitJob
from elasticflow.shared.messages.job_spec import TORCHRUN, JobClass
from elasticflow.shared.scheduling.jobs.scheduler_view import rates_to_promise
from elasticflow.shared.state.measured_curve import MeasuredCurve
from testbed.histories import NOW_S, History, best_effort, pool, submit

RACKS = {"node-0": "left", "node-1": "left", "node-2": "right", "node-3": "right"}
IN_A_BLOCK, APART = 1.8, 0.7  # of the speed of one GPU, on two of them
KEY = "new/b64"


def planned(history: History, *commands: Command, at_s: float = NOW_S) -> list[Any]:
    """What all three services decide, in turn."""
    asked = {ADMISSION: commands}
    each = (history.decided(policy, *asked.get(policy, ()), now_s=at_s) for policy in (ADMISSION, ALLOCATOR, PLACEMENT))
    return [event for decided in each for event in decided]


def holds(history: History, job_id: str = "a") -> tuple[str, ...]:
    return tuple(gpu.node_id for gpu in history.state.live_jobs[job_id].gpus)


def measured(history: History, rate: float, at_s: float, job_id: str = "a", source: Any = "profile") -> MeasuredCurve:
    job = history.state.live_jobs[job_id]
    event = events.ThroughputMeasured(
        profile_key=KEY,
        num_gpus=len(job.gpus),
        iterations_per_s=rate,
        job_id=job_id,
        generation=job.generation,
        source=source,
        at_s=at_s,
    )
    return history.then(event).state.curves[KEY]


def on_two_gpus(history: History, **changes: Any) -> History:
    """A job of an unknown model is measured on one GPU, and its run goes on with two."""
    planned(history, submit("a", model_name="new", max_gpus=2, **changes))
    measured(history, 1.0, NOW_S + 5.0)
    planned(history, at_s=NOW_S + 5.0)
    assert len(holds(history)) == 2
    return history


LATER: dict[str, Any] = {"deadline_s": NOW_S + 9_000.0}
WITHOUT: dict[str, Any] = {"deadline_s": None, "job_class": JobClass.BEST_EFFORT}


def test_a_run_is_measured_across_racks_where_nodes_that_are_down_may_leave_a_promise_no_other_pair() -> None:
    """With two nodes down, one of each rack may be left: today's worst pair is within a rack."""
    history = on_two_gpus(pool(1, 1, 1, 1, racks=RACKS, reserve_nodes=2), **LATER)
    assert {RACKS[node_id] for node_id in holds(history)} == {"left", "right"}
    curve = measured(history, APART, NOW_S + 10.0)
    assert rates_to_promise(history.state, curve)[2] == APART


def test_a_script_that_would_restart_to_leave_its_gpus_is_measured_in_a_block() -> None:
    """Promised where it was measured, it would stay apart, on GPUs of two nodes that others are promised whole."""
    racks_apart = pool(1, 1, 1, 1, racks=RACKS, reserve_nodes=2)
    history = on_two_gpus(racks_apart, **LATER, training_function=f"train:{TORCHRUN}")
    assert len({RACKS[node_id] for node_id in holds(history)}) == 1


def test_a_run_is_measured_on_two_nodes_where_promised_jobs_never_migrate() -> None:
    history = on_two_gpus(pool(2, 2, migration_budget=0.0), **LATER)
    assert len(set(holds(history))) == 2


def test_a_run_is_measured_in_a_node_where_promises_count_on_one() -> None:
    history = on_two_gpus(pool(2, 2), **LATER)
    assert len(set(holds(history))) == 1


def with_the_third_gpu_taken() -> History:
    """Two nodes of three GPUs: the worst pair is the third ones of both, and a job has one of these."""
    history = pool(3, 3)
    planned(history, SubmitJob(job_id="other", tenant="lab", spec=best_effort(max_gpus=1)))
    assert [gpu.gpu_index for gpu in history.started("other").state.live_jobs["other"].gpus] == [2]
    return history


def test_a_run_is_as_far_apart_as_the_worst_block_where_that_is_taken() -> None:
    history = on_two_gpus(with_the_third_gpu_taken(), **LATER)
    assert len(set(holds(history))) == 2
    curve = measured(history, APART, NOW_S + 10.0)
    assert not curve.bounded
    assert rates_to_promise(history.state, curve)[2] == APART


def measured_in_a_node_only() -> History:
    """The second node joins after the run: the promise of two GPUs counts on a bound."""
    history = on_two_gpus(pool(3), **WITHOUT)
    curve = measured(history, IN_A_BLOCK, NOW_S + 10.0)
    assert not curve.bounded
    planned(history, at_s=NOW_S + 10.0)
    planned(history, CancelJob(job_id="a", tenant="lab"), at_s=NOW_S + 11.0)
    assert not history.state.live_jobs
    late = events.NodeJoined(node_id="node-1", incarnation="late", num_gpus=3, device="cpu", at_s=NOW_S + 12.0)
    history.then(late)
    assert rates_to_promise(history.state, history.state.curves[KEY])[2] < IN_A_BLOCK
    return history


def test_a_bound_is_replaced_by_the_next_job_without_a_promise_which_then_joins_its_gpus() -> None:
    history = measured_in_a_node_only()
    planned(history, submit("b", model_name="new", max_gpus=2, min_gpus=2, **WITHOUT), at_s=NOW_S + 20.0)
    assert len(set(holds(history, "b"))) == 2
    history.started("b", at_s=NOW_S + 22.0)
    planned(history, at_s=NOW_S + 25.0)
    assert len(set(holds(history, "b"))) == 2, "not before it is measured"
    curve = measured(history, APART, NOW_S + 40.0, job_id="b", source="training")
    assert rates_to_promise(history.state, curve)[2] == APART
    (placed,) = [event for event in planned(history, at_s=NOW_S + 40.0) if isinstance(event, events.PlacementDecided)]
    assert placed.migrated == ("b",)
    assert len(set(holds(history, "b"))) == 1


def test_a_promised_job_measures_no_place_that_it_does_not_need() -> None:
    history = measured_in_a_node_only()
    promised = submit("b", model_name="new", max_gpus=2, min_gpus=2, deadline_s=NOW_S + 9_000.0)
    decided = planned(history, promised, at_s=NOW_S + 20.0)
    assert any(isinstance(event, events.JobAdmitted) for event in decided)
    assert len(set(holds(history, "b"))) == 1
