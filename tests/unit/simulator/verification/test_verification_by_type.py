"""Promises of a pool of two GPU types that are made, amended and moved: right ones pass, wrong ones are named."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from elasticflow.services.admission.policy import decide
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import AmendJob
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.simulator.verification.trace_verification import VerificationByType
from elasticflow.simulator.workload.workload import ClusterShape, TraceJob, Workload, typed_pool
from testbed.histories import LINEAR, NOW_S, History, submit
from tests.support.two_types import SLOWER, due_in, two_types
from tests.support.worker_events import joined, lost

SOON_S = NOW_S + 20.0
FAST, SLOW = (ScalingCurve(tuple(curve), tuple(curve.values())) for curve in (LINEAR, SLOWER))
Lie = Callable[[Any], Any]


def traced(job_id: str, deadline_in_s: float, *, num_iterations: int = 100, runs_on_slow: bool = True) -> TraceJob:
    return TraceJob(
        job_id=job_id,
        submitted_at_s=NOW_S - 1.0,
        num_iterations=num_iterations,
        model_name="linear",
        global_batch_size=64,
        deadline_s=NOW_S + deadline_in_s,
        job_class=JobClass.SLO,
        curve=FAST,
        measured_by_type={"V100": FAST, "P100": SLOW} if runs_on_slow else {"V100": FAST},
    )


class Observed:
    """Decisions of admission, each checked as in a simulation. lie: changes their events before both see them."""

    def __init__(self, *jobs: TraceJob, lie: Lie = lambda event: event, **config: Any) -> None:
        self.history, self._lie = two_types(**config), lie
        cluster = ClusterShape.of_pool(typed_pool("4xV100,4xP100"), 4)
        self.verification = VerificationByType(Workload.of("test", jobs), cluster, ResizeCost.flat(2.0))

    def decide(self, *commands: Any, now_s: float = NOW_S) -> list[Any]:
        decided = tuple(self._lie(event) for event in decide(self.history.state, commands, now_s))
        self.verification.decided(self.history.state, decided, now_s)
        self.history.then(*decided)
        return list(decided)


def of_fast_type(*jobs: TraceJob, lie: Lie = lambda event: event, deadline_s: float = 500.0, **config: Any) -> Observed:
    """Job a is promised on V100 while P100 is full of job "fills", which then ends."""
    fills = traced("fills", 1000.0, num_iterations=1980)
    observed = Observed(*jobs, fills, lie=lie, **config)
    (filled,) = observed.decide(submit("fills", gpu_type="P100", max_iterations=1980, **due_in(1000.0)))
    (admitted,) = observed.decide(submit("a", **due_in(deadline_s)))
    assert (filled.gpu_type, admitted.gpu_type) == ("P100", "")
    observed.history.then(events.JobCancelled(job_id="fills", reason="", at_s=NOW_S))
    return observed


def without_fast_type(history: History) -> None:
    at_risk = events.JobAtRisk(job_id="a", generation=0, projected_finish_s=None, deadline_s=NOW_S + 500.0, at_s=SOON_S)
    history.then(lost("node-0", "one"), at_risk)


def moved(lie: Lie = lambda event: event, *, runs_on_slow: bool = True) -> VerificationByType:
    observed = of_fast_type(traced("a", 500.0, runs_on_slow=runs_on_slow), lie=lie)
    without_fast_type(observed.history)
    (changed,) = observed.decide(now_s=SOON_S)
    assert isinstance(changed, events.GpuTypeChanged)
    return observed.verification


def amended(lie: Lie = lambda event: event, **terms: Any) -> tuple[VerificationByType, Any]:
    observed = of_fast_type(traced("a", 500.0), lie=lie)
    (event,) = observed.decide(AmendJob(job_id="a", tenant="lab", **terms))
    assert isinstance(event, events.JobAmended)
    return observed.verification, event


def shorter(kind: type) -> Lie:
    """The last segment of the schedule ends half a second early."""

    def lie(event: Any) -> Any:
        if not isinstance(event, kind):
            return event
        *kept, start_s, end_s, num_gpus = event.minimum_satisfactory_share
        return replace(event, minimum_satisfactory_share=(*kept, start_s, end_s - 0.5, num_gpus))

    return lie


def test_a_promise_that_moves_to_another_type_is_checked_there() -> None:
    verification = moved()
    assert (verification.certificates_checked, verification.failures) == (3, [])


def test_a_schedule_on_the_new_type_that_is_too_short_is_named() -> None:
    (failure,) = moved(shorter(events.GpuTypeChanged)).failures
    assert failure == f"at {SOON_S} s: a: its schedule does not end it by {NOW_S + 500.0} s"


def test_a_move_to_a_type_on_which_the_job_does_not_run_is_named() -> None:
    assert moved(runs_on_slow=False).failures == [f"at {SOON_S} s: a: it does not run on GPUs of its new type"]


def test_a_moved_promise_leaves_its_former_type_and_holds_gpus_of_the_new_one() -> None:
    full = {"max_iterations": 780, **due_in(420.0)}
    there, back = traced("there", 420.0, num_iterations=780), traced("back", 250.0, num_iterations=780)

    def as_if_empty(event: Any) -> Any:
        """Four P100 for `there`, from now on: those of job a are ignored."""
        if not isinstance(event, events.JobRejected):
            return event
        return events.JobAdmitted(
            job_id="there",
            tenant="lab",
            spec=submit("there", **full).spec,
            deadline_s=NOW_S + 420.0,
            minimum_satisfactory_share=(SOON_S, SOON_S + 392.0, 4.0),
            gpu_seconds=0.0,
            gpu_type="P100",
            at_s=SOON_S,
        )

    observed = of_fast_type(traced("a", 100.0), there, back, lie=as_if_empty, deadline_s=100.0)
    without_fast_type(observed.history)
    (changed,) = observed.decide(now_s=SOON_S)
    assert isinstance(changed, events.GpuTypeChanged)
    observed.decide(submit("there", gpu_type="P100", **full), now_s=SOON_S)
    (failure,) = observed.verification.failures
    assert "GPUs are held at" in failure


@pytest.mark.parametrize("terms", [{"deadline_s": NOW_S + 300.0}, {"max_iterations": 200}])
def test_an_amended_promise_is_checked_on_its_new_terms(terms: dict[str, Any]) -> None:
    verification, event = amended(**terms)
    assert event.gpu_type is None
    assert (verification.certificates_checked, verification.failures) == (3, [])
    (failure,) = amended(shorter(events.JobAmended), **terms)[0].failures
    assert failure.startswith(f"at {NOW_S} s: a: its schedule does not end it by")


def test_a_promise_that_an_amendment_moves_is_checked_on_the_other_type() -> None:
    """V100 is full beside job a, which has too many iterations there now."""
    beside = traced("beside", 700.0, num_iterations=2300)

    def run(lie: Lie = lambda event: event) -> VerificationByType:
        observed = of_fast_type(traced("a", 500.0), beside, lie=lie)
        (filled,) = observed.decide(submit("beside", gpu_type="V100", max_iterations=2300, **due_in(700.0)))
        assert isinstance(filled, events.JobAdmitted)
        (event,) = observed.decide(AmendJob(job_id="a", tenant="lab", max_iterations=900))
        assert event.gpu_type == "P100"
        return observed.verification

    assert run().failures == []
    assert "a: its schedule does not end it by" in run(shorter(events.JobAmended)).failures[0]


def test_a_promise_that_moves_may_use_the_reserve_of_the_other_type() -> None:
    """P100 has two nodes, one of them in reserve, and the promise of another job fills the other one."""
    there, a = traced("there", 380.0, num_iterations=690), traced("a", 110.0)
    observed = Observed(there, a, reserve_nodes=1)
    observed.history.then(joined("three", "node-2", num_gpus=4, gpu_type="P100"))
    observed.decide(submit("there", gpu_type="P100", max_iterations=690, **due_in(380.0)))
    observed.decide(submit("a", **due_in(110.0)))
    without_fast_type(observed.history)
    (changed,) = observed.decide(now_s=SOON_S)
    assert isinstance(changed, events.GpuTypeChanged)
    assert (observed.verification.certificates_checked, observed.verification.failures) == (3, [])
