"""What a promise counts on: the quantile of what is known of a job's speed, and of that of others of its profile."""

from functools import reduce
from math import exp, log
from typing import Any

import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.scheduling.jobs.scheduler_view import confidence_factor, known_curve
from elasticflow.shared.state.job import NO_SPEEDS, SETTLED_S, Job, SpeedStatistics
from testbed import histories
from testbed.histories import NOW_S, History, gpus, spec

SURE = PoolConfig(confidence=0.99, speed_spread=0.1)
Z99 = 2.3263


def seen(*ratios: float) -> SpeedStatistics:
    return reduce(SpeedStatistics.with_ratio, ratios, NO_SPEEDS)


def test_without_a_confidence_the_margin_is_flat() -> None:
    assert confidence_factor(PoolConfig(throughput_margin=0.2), seen(0.5), seen(0.5)) == 0.8


def test_ratios_are_counted_averaged_and_their_scatter_kept() -> None:
    logs = [log(ratio) for ratio in (0.8, 1.0, 1.3)]
    mean = sum(logs) / 3
    speed = seen(0.8, 1.0, 1.3)
    assert (speed.count, speed.mean) == (3, pytest.approx(mean))
    assert speed.scatter == pytest.approx(sum((each - mean) ** 2 for each in logs))


def test_before_a_job_has_run_the_setting_decides() -> None:
    assert confidence_factor(SURE, NO_SPEEDS, NO_SPEEDS) == pytest.approx(exp(-Z99 * 0.1), abs=0.01)
    assert confidence_factor(PoolConfig(confidence=0.5), NO_SPEEDS, NO_SPEEDS) == 1.0
    more = PoolConfig(confidence=0.999, speed_spread=0.1)
    assert confidence_factor(more, NO_SPEEDS, NO_SPEEDS) < confidence_factor(SURE, NO_SPEEDS, NO_SPEEDS)


def test_own_reports_narrow_it_to_what_they_say() -> None:
    factors = [confidence_factor(SURE, NO_SPEEDS, seen(*[0.9] * count)) for count in (0, 1, 4, 16, 64, 1024)]
    assert factors == sorted(factors)
    assert 0.85 < factors[-1] < 0.9


def test_a_job_that_is_slower_than_thought_is_counted_on_for_less() -> None:
    assert confidence_factor(SURE, NO_SPEEDS, seen(*[0.6] * 16)) < 0.6
    assert confidence_factor(SURE, NO_SPEEDS, seen(*[1.5] * 1024)) == 1.0, "never on more than the curve"


def test_jobs_of_the_same_profile_narrow_it_for_the_next() -> None:
    alike = confidence_factor(SURE, seen(*[0.95] * 20), NO_SPEEDS)
    assert confidence_factor(SURE, NO_SPEEDS, NO_SPEEDS) < alike < 0.95
    rows_that_differ = confidence_factor(SURE, seen(*[0.7, 1.3] * 10), NO_SPEEDS)
    assert rows_that_differ < confidence_factor(SURE, NO_SPEEDS, NO_SPEEDS)


# --- what is kept of it in the state ----------------------------------------------------------------------


def running(
    virtual_nodes_by_rank: tuple[int, ...] = (),
    on: tuple[str, ...] = ("node-0:0",),
    nodes: tuple[int, ...] = (4,),
    **config: Any,
) -> History:
    """A job on these GPUs, whose curve says one iteration a second for each GPU."""
    admitted = events.JobAdmitted(
        job_id="a",
        tenant="lab",
        spec=spec(deadline_s=NOW_S + 1_000.0),
        deadline_s=NOW_S + 1_000.0,
        minimum_satisfactory_share=(),
        gpu_seconds=100.0,
        at_s=NOW_S,
    )
    placed = events.PlacedJob(job_id="a", generation=1, gpus=gpus(*on), virtual_nodes_by_rank=virtual_nodes_by_rank)
    history = histories.pool(*nodes, **config)
    return history.then(admitted, events.PlacementDecided(placements=(placed,), at_s=NOW_S)).started("a")


def progressed(iteration: int, rate: float | None, *, at_s: float = NOW_S + SETTLED_S) -> events.JobProgressed:
    return events.JobProgressed(
        job_id="a",
        generation=1,
        iteration=iteration,
        iterations_per_s=rate,
        checkpoint_iteration=0,
        at_s=at_s + iteration,
    )


def job_of(history: History) -> Job:
    return history.state.live_jobs["a"]


def test_reports_are_kept_where_a_confidence_asks_for_them() -> None:
    history = running(confidence=0.99).then(progressed(1, 0.8), progressed(2, None), progressed(3, 0.9))
    assert job_of(history).speed == seen(0.8, 0.9)
    assert job_of(history.then(progressed(3, 0.9))).speed == seen(0.8, 0.9), "repeated"
    assert job_of(running().then(progressed(1, 0.8))).speed == NO_SPEEDS
    assert job_of(running((8,), confidence=0.99).then(progressed(1, 0.8))).speed == NO_SPEEDS


APART = {"linear/b64": {1: 1.0, 2: 2.0, 4: 4.0}, "linear/b64@cluster": {2: 0.8}}


@pytest.mark.parametrize(
    ("on", "curves", "ratios"),
    [
        pytest.param(("node-0:0", "node-0:1"), APART, (0.9,), id="a block"),
        pytest.param(("node-0:0", "node-1:0"), APART, (2.25,), id="another place with a curve"),
        pytest.param(("node-0:0", "node-1:0"), {"linear/b64": APART["linear/b64"]}, (), id="without one"),
    ],
)
def test_a_speed_is_compared_with_the_curve_of_its_place(
    on: tuple[str, ...], curves: dict[str, dict[int, float]], ratios: tuple[float, ...]
) -> None:
    history = running(on=on, nodes=(2, 2), curves=curves, confidence=0.99).then(progressed(1, 1.8))
    assert job_of(history).speed == seen(*ratios)


def test_the_speed_of_the_first_steps_does_not_count() -> None:
    history = running(confidence=0.99).then(progressed(2, 0.4, at_s=NOW_S))
    assert (job_of(history).speed, job_of(history).iterations_per_s) == (NO_SPEEDS, 0.4)
    assert job_of(history.then(progressed(3, 0.9))).speed == seen(0.9)


def test_the_first_reports_make_the_allocator_look_again_and_later_ones_rarely() -> None:
    history, looks = running(confidence=0.99), list[int]()
    for iteration in range(1, 17):
        before = history.state.scheduling_event_sequence
        history.then(progressed(iteration, 0.9))
        if history.state.scheduling_event_sequence != before:
            looks.append(iteration)
    assert looks == [1, 2, 4, 8, 16]


def test_a_job_that_ended_says_something_of_the_next_of_its_profile() -> None:
    history = running(confidence=0.99).then(progressed(1, 0.8), progressed(2, 0.8))
    before = known_curve(history.state, spec())
    history.finished("a", at_s=NOW_S + 200.0)
    (curve,) = history.state.curves.values()
    assert curve.speed == seen(0.8)
    after = known_curve(history.state, spec())
    assert before is not None
    assert after is not None
    assert after.throughput(1) < before.throughput(1)
