"""Given more GPUs than a profiling run measured, a job probes them where no other job can use them."""

import math
from dataclasses import replace
from typing import Any

import pytest

from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.allocator.profiling import PROBE_S, next_probe
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import events
from elasticflow.shared.messages.job_spec import TORCHRUN, JobClass
from elasticflow.shared.messages.measurements import VirtualNodeCount
from elasticflow.shared.scheduling.admission.planned_pool import planned_pool
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import QuoteReservation, spec_of
from testbed.histories import NOW_S, History, pool, submit

COST_S = 2.0
PROFILE = "new/b64"


def planned(history: History, now_s: float) -> Any:
    """What the allocator decided, if anything; and its placement."""
    decided = history.decided(ALLOCATOR, now_s=now_s)
    history.decided(PLACEMENT, now_s=now_s)
    return decided[-1] if decided else None


def measured(
    history: History, num_gpus: int, rate: float, at_s: float, virtual_nodes: VirtualNodeCount | None = None
) -> None:
    history.then(
        events.ThroughputMeasured(
            profile_key=PROFILE,
            num_gpus=num_gpus,
            iterations_per_s=rate,
            virtual_nodes=virtual_nodes,
            job_id="a",
            generation=history.state.live_jobs["a"].generation,
            source="training",
            at_s=at_s,
        )
    )


def trains_on_four(rates: dict[int, float] | None = None, measured_to: int | None = 4, **spec: Any) -> History:
    """A job of a profile that was measured when the pool had four GPUs; now there are eight more."""
    history = pool(4, resize_cost_s=COST_S, stop_free=True)
    history.decided(ADMISSION, submit("a", model_name="new", **{"deadline_s": NOW_S + 1_000.0} | spec))
    known = rates or {1: 1.0, 2: 2.0, 4: 4.0}
    history.then(
        events.ProfileCompleted(profile_key=PROFILE, iterations_per_s=known, measured_to=measured_to, at_s=NOW_S)
    )
    history.decided(ADMISSION)
    planned(history, NOW_S)
    history.started("a").nodes(4, 8, at_s=NOW_S + 1.0)
    return history


def job_of(history: History) -> Job:
    return history.state.live_jobs["a"]


@pytest.mark.parametrize(
    ("rates", "count", "measured_to"),
    [((1.0, 2.0), None, 2), ((1.0, 1.05), None, 2), ((1.0, 2.0), 4, 2), ((1.0, 2.0), 2, None)],
    ids=["as fast as hoped", "flat, which may be noise", "of four virtual nodes", "of two virtual nodes"],
)
def test_a_profile_names_the_largest_measured_level_where_more_might_help(
    rates: tuple[float, ...], count: int | None, measured_to: int | None
) -> None:
    history = pool(2)
    history.decided(ADMISSION, submit("a", model_name="new"))
    for rate in rates:
        planned(history, NOW_S)
        of_one = None if count is None else VirtualNodeCount(count=count, source="measured")
        measured(history, len(job_of(history).gpus), rate, NOW_S, of_one)
    completed = history.decided(ALLOCATOR)[0]
    assert isinstance(completed, events.ProfileCompleted)
    assert completed.measured_to == measured_to


@pytest.mark.parametrize(
    ("rates", "count"),
    [
        ((1.0, 2.0, 4.0, 8.0, 16.0), None),
        ((1.0, 1.05, 1.06), None),
        ((1.0, 2.0, 1.9, 1.8), None),
        ((1.0, 2.0, 1.9, 3.5, 3.6), None),
        ((1.0, 2.0, 4.0), 4),
        ((1.0,), 1),
    ],
    ids=["all of the pool", "flat", "twice flat", "the border of a node", "four virtual nodes", "one virtual node"],
)
def test_a_profiling_run_ends_at_the_second_flat_doubling_and_at_the_virtual_nodes(
    rates: tuple[float, ...], count: int | None
) -> None:
    history = pool(16)
    history.decided(ADMISSION, submit("a", model_name="new"))
    for exponent, rate in enumerate(rates):
        planned(history, NOW_S)
        assert len(job_of(history).gpus) == 1 << exponent
        of_one = None if count is None else VirtualNodeCount(count=count, source="measured")
        measured(history, 1 << exponent, rate, NOW_S, of_one)
    assert isinstance(history.decided(ALLOCATOR)[0], events.ProfileCompleted)


def test_a_job_probes_more_gpus_and_keeps_them_where_it_is_faster() -> None:
    history = trains_on_four()
    decided = planned(history, NOW_S + 1.0)
    assert (decided.probes, dict(decided.num_gpus_by_job)) == ("a", {"a": 8})
    assert decided.valid_until_s == NOW_S + 1.0 + COST_S + PROBE_S
    history.started("a", iteration=4, at_s=NOW_S + 3.0)
    assert planned(history, NOW_S + 4.0) is None or job_of(history).num_gpus == 8
    measured(history, 8, 7.0, NOW_S + 12.0)
    after = planned(history, NOW_S + 12.0)
    assert (after.probes, job_of(history).num_gpus) == (None, 8)
    assert math.isfinite(history.state.curves[PROFILE].probed_to)


def test_a_job_that_is_no_faster_shrinks_again_and_the_probe_is_not_repeated() -> None:
    history = trains_on_four()
    planned(history, NOW_S + 1.0)
    history.started("a", iteration=4, at_s=NOW_S + 3.0)
    measured(history, 8, 4.1, NOW_S + 12.0)
    assert planned(history, NOW_S + 12.0).probes is None
    history.started("a", iteration=40, at_s=NOW_S + 14.0)
    again = history.decided(ALLOCATOR, now_s=NOW_S + 40.0)
    assert not again or again[-1].probes is None
    assert job_of(history).num_gpus <= 8


def test_more_gpus_than_flat_ones_are_probed_once_when_they_are_idle() -> None:
    """The job trains on two GPUs, since four are hardly faster."""
    history = trains_on_four({1: 1.0, 2: 2.0, 4: 1.9})
    assert job_of(history).num_gpus == 2
    begun = planned(history, NOW_S + 1.0)
    assert (begun.probes, dict(begun.num_gpus_by_job)) == ("a", {"a": 8})
    history.started("a", iteration=4, at_s=NOW_S + 3.0)
    measured(history, 8, 2.05, NOW_S + 12.0)
    assert planned(history, NOW_S + 12.0).probes is None
    history.started("a", iteration=40, at_s=NOW_S + 14.0).nodes(4, 8, at_s=NOW_S + 15.0)
    after = history.decided(ALLOCATOR, now_s=NOW_S + 15.0)
    assert not after or after[-1].probes is None


def test_a_probe_without_a_report_ends_and_is_not_repeated() -> None:
    history = trains_on_four()
    until_s = planned(history, NOW_S + 1.0).valid_until_s
    history.started("a", iteration=4, at_s=NOW_S + 3.0)
    assert dict(planned(history, until_s).num_gpus_by_job) == {"a": 4}
    history.started("a", iteration=40, at_s=until_s + 1.0).nodes(4, 8, 1, at_s=until_s + 2.0)
    assert dict(planned(history, until_s + 2.0).num_gpus_by_job) == {"a": 4}


@pytest.mark.parametrize(
    ("spec", "rates", "measured_to"),
    [
        ({}, {1: 1.0, 2: 2.0, 4: 4.0}, None),
        ({"max_gpus": 4}, {1: 1.0, 2: 2.0, 4: 4.0}, 4),
        ({"global_batch_size": 6}, {1: 1.0, 2: 2.0, 4: 4.0}, 4),
    ],
    ids=["measured to its end", "out of its range", "more than the batch"],
)
def test_no_probe_begins_that_cannot_help(
    spec: dict[str, Any], rates: dict[int, float], measured_to: int | None
) -> None:
    history = pool(4, resize_cost_s=COST_S, stop_free=True)
    command = submit("a", model_name="new", deadline_s=NOW_S + 1_000.0, **spec)
    history.decided(ADMISSION, command)
    history.then(
        events.ProfileCompleted(
            profile_key=command.spec.profile_key, iterations_per_s=rates, measured_to=measured_to, at_s=NOW_S
        )
    )
    history.decided(ADMISSION)
    planned(history, NOW_S)
    history.started("a").nodes(4, 8, at_s=NOW_S + 1.0)
    assert planned(history, NOW_S + 1.0).probes is None


@pytest.mark.parametrize(
    ("stop_free", "training_function", "tries"),
    [(True, "train:Net", "a"), (False, "train:Net", None), (True, f"train:{TORCHRUN}", None)],
)
def test_no_probe_begins_for_which_workers_would_have_to_stop(
    stop_free: bool, training_function: str, tries: str | None
) -> None:
    history = trains_on_four(training_function=training_function)
    history.configured(resize_cost_s=COST_S, stop_free=stop_free)
    assert planned(history, NOW_S + 1.0).probes == tries


def test_no_probe_begins_that_would_break_a_promise_without_progress() -> None:
    """100 iterations at 4/s take 25 s; a probe without progress costs as much again."""
    assert planned(trains_on_four(deadline_s=NOW_S + 40.0), NOW_S + 1.0).probes is None
    assert planned(trains_on_four(deadline_s=NOW_S + 60.0), NOW_S + 1.0).probes == "a"


def test_a_probe_keeps_quote_reservations() -> None:
    state, now_s = trains_on_four().state, NOW_S + 1.0
    pool = planned_pool(state, now_s)
    quote = QuoteReservation(
        job_id="q",
        tenant="lab",
        spec=spec_of(state.live_jobs["a"]),
        deadline_s=NOW_S + 500.0,
        schedule=(),
        gpu_seconds=0.0,
        at_s=NOW_S,
        until_s=NOW_S + 60.0,
    )
    assert next_probe(state, pool, {"a": 4}, 8, now_s) is not None
    assert next_probe(state, replace(pool, held=(quote,)), {"a": 4}, 8, now_s) is None, "it would be lost"


def test_a_probe_without_progress_breaks_no_promise() -> None:
    history = trains_on_four(deadline_s=NOW_S + 60.0)
    until_s = planned(history, NOW_S + 1.0).valid_until_s
    history.started("a", iteration=4, at_s=NOW_S + 3.0)
    planned(history, until_s)
    back_s = until_s + COST_S
    history.started("a", iteration=4, at_s=back_s)
    assert job_of(history).num_gpus == 4
    assert back_s + 96.0 / 4.0 <= NOW_S + 60.0
    assert not planned_pool(history.state, back_s).plan.late


def test_no_probe_begins_for_which_other_jobs_would_have_to_move() -> None:
    """Planned beside a job without progress, the others hold 12 of the 14 GPUs, which leaves fewer than 8."""
    history, now_s = trains_on_four(deadline_s=NOW_S + 150.0), NOW_S + 1.0
    history.nodes(4, 8, 2, at_s=now_s)
    for command in (
        submit("b", model_name="new", deadline_s=NOW_S + 180.0, max_iterations=540, min_gpus=2),
        submit("c", deadline_s=NOW_S + 180.0, max_iterations=260, min_gpus=8),
    ):
        assert isinstance(history.decided(ADMISSION, command, now_s=now_s)[0], events.JobAdmitted)
    begun = next_probe(history.state, planned_pool(history.state, now_s), {"a": 4}, 4, now_s)
    assert begun is not None
    assert begun[0].num_gpus == 8
    decided = planned(history, now_s)
    assert (decided.probes, decided.num_gpus_by_job["a"]) == (None, 4)
    assert history.state.curves[PROFILE].probed_to == 4, "it may be probed later"


def test_another_job_gets_the_gpus_of_a_probe() -> None:
    history = trains_on_four()
    planned(history, NOW_S + 1.0)
    history.started("a", iteration=4, at_s=NOW_S + 3.0)
    arriving_job = submit("b", job_class=JobClass.BEST_EFFORT, deadline_s=None, max_iterations=10_000)
    history.decided(ADMISSION, arriving_job, now_s=NOW_S + 4.0)
    decided = planned(history, NOW_S + 4.0)
    assert decided.num_gpus_by_job["b"] == 8
    assert decided.num_gpus_by_job["a"] == 4


def test_one_probe_runs_at_a_time() -> None:
    history = trains_on_four()
    history.nodes(4, 8, 16, 16, at_s=NOW_S + 1.0)
    other = submit("b", model_name="new", deadline_s=NOW_S + 900.0, max_iterations=2_000)
    history.decided(ADMISSION, other, now_s=NOW_S + 1.0)
    decided = planned(history, NOW_S + 1.0)
    history.started("b", at_s=NOW_S + 2.0)
    again = planned(history, NOW_S + 2.0) or decided
    assert sorted(again.num_gpus_by_job.values()) == [4, 8]
