"""Given a pool of two GPU types, shares stay within a type, and so do the GPUs of each job."""

from typing import Any

import pytest

from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.allocator.policy import wake_at_s
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import SubmitJob
from tests.support.histories import NOW_S, History, best_effort, submit
from tests.support.two_types import due_in, two_types, type_of
from tests.support.worker_events import throughput

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
    history = two_types()
    history.decided(ADMISSION, submit("a", gpu_type="V100", **UNKNOWN), submit("b", gpu_type="P100", **UNKNOWN))
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
