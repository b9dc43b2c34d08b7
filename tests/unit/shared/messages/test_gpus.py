"""GPUs over time are validated by the codec; a job with a range is measured, promised and run only on numbers in it."""

from collections.abc import Mapping
from typing import Any

import msgpack
import pytest

from elasticflow.errors import InvalidJob
from elasticflow.sdk.job import ElasticJob
from elasticflow.services.admission.policy import POLICY as ADMISSION
from elasticflow.services.admission.quote import quote
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.monitor import policy as monitor
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import codec, events
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.commands import ProfileJob, QuoteDeadline, SetGpuLimits
from elasticflow.shared.messages.gpus import ANY_NUMBER, GpuRange, ShareSegment, range_problem, segments
from elasticflow.shared.messages.job_spec import JobClass, JobSpec, Scalar
from elasticflow.shared.messages.measurements import VirtualNodeCount
from elasticflow.shared.scheduling.jobs.scheduler_view import known_curve
from elasticflow.shared.state.job import Phase
from testbed.histories import LINEAR, NOW_S, History, best_effort, pool, spec, submit
from tests.support.worker_events import lost, throughput
from tests.support.worker_events import measured as speed


def planned(schedule: object) -> bytes:
    payload = {"num_gpus_by_job": {}, "valid_until_s": None, "planned": {"a": schedule}, "at_s": NOW_S}
    return msgpack.packb({"type": "AllocationDecided", "version": 1, "payload": payload})


def test_a_schedule_is_read_segment_by_segment() -> None:
    assert list(segments(())) == []
    steps = list(segments((0.0, 40.0, 1.0, 50.0, 120.0, 4.0)))
    assert steps == [ShareSegment(0.0, 40.0, 1), ShareSegment(50.0, 120.0, 4)]


@pytest.mark.parametrize("bad", [[0.0], [0.0, 1.0, 2, 3.0], [0.0, -1.0, 2], [0.0, float("nan"), 1], ["a"] * 3])
def test_what_is_no_schedule_is_refused_at_the_door(bad: list[object]) -> None:
    with pytest.raises(Undecodable, match="planned"):
        codec.decode(planned(bad))


def shares(history: History) -> dict[str, int]:
    history.decided(ALLOCATOR)
    return {job_id: job.num_gpus for job_id, job in sorted(history.state.live_jobs.items())}


# --- the range itself -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("min_gpus", "max_gpus", "sizes"),
    [
        (1, None, [1, 2, 4, 8]),
        (4, 4, [4]),
        (2, 8, [2, 4, 8]),
        (3, 9, [4, 8]),
        (3, 7, [4]),
        (1, 3, [1, 2]),
        (5, None, [8]),
        (3, 3, []),
        (5, 7, []),
    ],
)
def test_powers_of_two_between_the_bounds_are_its_sizes(min_gpus: int, max_gpus: int | None, sizes: list[int]) -> None:
    gpu_range = GpuRange.of(min_gpus, max_gpus)
    assert [size for size in LINEAR if gpu_range.allows(size)] == sizes
    assert gpu_range.is_empty == (not sizes) == (range_problem(min_gpus, max_gpus) is not None)


def test_what_two_ranges_have_in_common() -> None:
    assert GpuRange(2, 8).intersection(GpuRange(4, None)) == GpuRange(4, 8)
    assert GpuRange(2, None).intersection(ANY_NUMBER) == GpuRange(2, None)
    assert GpuRange(1, 2).intersection(GpuRange(4, 8)).is_empty


def test_limits_with_the_same_sizes_are_one_range_in_texts_and_keys() -> None:
    assert spec(min_gpus=3, max_gpus=9).profile_key == spec(min_gpus=4, max_gpus=8).profile_key
    assert spec(min_gpus=4, max_gpus=8).profile_key == "linear/b64[4..8]"
    assert spec(min_gpus=4, max_gpus=8).measured_key == spec().profile_key == "linear/b64"
    assert [str(GpuRange(*ends)) for ends in ((4, 4), (2, 8), (2, None), (1, 8))] == [
        "4",
        "2..8",
        "2..",
        "..8",
    ]


# --- what is promised -----------------------------------------------------------------------------------


def promised_sizes(history: History, job_id: str = "a") -> set[int]:
    return {s.num_gpus for s in segments(history.state.live_jobs[job_id].minimum_satisfactory_share)}


def test_a_promise_counts_on_sizes_within_the_range_alone() -> None:
    history = pool(8)
    history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 500.0), submit("b", min_gpus=4, max_gpus=4))
    assert promised_sizes(history, "a") == {1}  # the cheapest that is in time
    assert promised_sizes(history, "b") == {4}


def test_a_deadline_that_the_range_cannot_keep_is_refused_and_quoted_as_it_is_admitted() -> None:
    history = pool(8)
    (refused,) = history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 30.0, max_gpus=2))
    assert isinstance(refused, events.JobRejected)
    assert refused.reason == "deadline"
    assert "alone on 2 GPUs" in refused.explanation
    quoted = quote(history.state, QuoteDeadline(tenant="lab", spec=spec(max_gpus=2)), NOW_S)
    assert quoted.earliest_deadline_s == refused.earliest_deadline_s == NOW_S + 53.0  # a stop of 2 s
    again = submit("again", deadline_s=quoted.earliest_deadline_s, max_gpus=2)
    (admitted,) = history.decided(ADMISSION, again)
    assert isinstance(admitted, events.JobAdmitted)


@pytest.mark.parametrize("job_class", [JobClass.SLO, JobClass.SOFT, JobClass.BEST_EFFORT, JobClass.PADDING])
def test_jobs_of_every_class_keep_to_their_range(job_class: JobClass) -> None:
    deadline_s = NOW_S + 100.0 if job_class.has_deadline else None
    history = pool(8)
    history.decided(ADMISSION, submit("a", job_class=job_class, deadline_s=deadline_s, min_gpus=2, max_gpus=4))
    assert shares(history) == {"a": 4}
    small = pool(3)
    small.decided(ADMISSION, submit("a", job_class=job_class, deadline_s=deadline_s, min_gpus=2))
    assert shares(small) == {"a": 2}


def test_an_inelastic_job_waits_rather_than_run_on_less() -> None:
    history = pool(4)
    history.decided(ADMISSION, submit("a", deadline_s=NOW_S + 60.0, min_gpus=2, max_gpus=2))
    history.decided(ADMISSION, submit("b", job_class=JobClass.BEST_EFFORT, deadline_s=None, min_gpus=4))
    assert shares(history) == {"a": 2, "b": 0}


class Odd(ElasticJob):
    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": 64}
    max_iterations = 10
    min_gpus, max_gpus = 5, 7


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"min_gpus": 3, "max_gpus": 3}, "invalid", "min_gpus: 3 is none of the numbers of GPUs that a job gets"),
        ({"min_gpus": 8, "max_gpus": 4}, "invalid", "min_gpus: 8 is more than the most, 4"),
        ({"min_gpus": 128}, "invalid", "128 GPUs are more than the batch's 64 samples"),
        ({"min_gpus": 16}, "unrunnable", "at least 16 GPUs, and the pool has 4"),
        ({"min_gpus": 16, "model_name": "new"}, "unrunnable", "at least 16 GPUs, and the pool has 4"),
    ],
)
def test_an_empty_range_is_rejected_with_its_reason(changes: dict[str, Any], reason: str, words: str) -> None:
    (refused,) = pool(4).decided(ADMISSION, submit("a", **changes))
    assert isinstance(refused, events.JobRejected)
    assert refused.reason == reason
    assert words in refused.explanation


@pytest.mark.parametrize(("source", "is_rejected"), [("measured", True), ("code", False), ("default", False)])
def test_more_gpus_than_the_measured_virtual_nodes_are_refused(source: Any, is_rejected: bool) -> None:
    """The others would compute nothing; code that names a number is another profile."""
    history, new = pool(4), spec(model_name="new")
    known = VirtualNodeCount(count=1, source=source)
    history.then(
        speed(new.measured_key, 1, 40.0, virtual_nodes=known),
        *(speed(new.measured_key, num_gpus, 40.0 + num_gpus) for num_gpus in (2, 4)),
    )
    (decided,) = history.decided(ADMISSION, submit("a", model_name="new", min_gpus=2, deadline_s=NOW_S + 900.0))
    if is_rejected:
        assert isinstance(decided, events.JobRejected)
        assert "min_gpus: 2 GPUs would do the work of 1" in decided.explanation
        assert "let the code say virtual_nodes = 2" in decided.explanation
    else:
        assert not isinstance(decided, events.JobRejected)


def test_a_fewest_number_above_the_batch_is_refused_once() -> None:
    """The virtual nodes are never more than the samples, so their number would only repeat it."""
    history, new = pool(4), spec(model_name="new", global_batch_size=1)
    known = VirtualNodeCount(count=1, source="measured")
    history.then(speed(new.measured_key, 1, 40.0, virtual_nodes=known))
    (refused,) = history.decided(ADMISSION, submit("a", model_name="new", global_batch_size=1, min_gpus=2))
    assert isinstance(refused, events.JobRejected)
    assert refused.explanation == "min_gpus: 2 GPUs are more than the batch's 1 samples; lower it"


def test_a_job_class_with_an_empty_range_is_refused_before_it_is_sent() -> None:
    with pytest.raises(
        InvalidJob,
        match=r"^min_gpus: 5\.\.7 is none of the numbers of GPUs that a job gets, 1, 2, 4, 8, \.\.\.: choose 4 or 8",
    ):
        Odd().set_deadline(within=60).spec()
    asked = Odd().set_gpus(max_gpus=8).set_deadline(within=60).spec()
    assert (asked.min_gpus, asked.max_gpus) == (5, 8)


def test_a_promised_job_that_has_no_place_left_is_said_to_be_at_risk() -> None:
    history = pool(4, 2)
    history.decided(ADMISSION, submit("a", min_gpus=4))
    history.then(lost())
    state = monitor.start(history.state)
    risks = [event for event in monitor.decide(state, (), NOW_S + 9.0) if isinstance(event, events.JobAtRisk)]
    assert [(risk.job_id, risk.projected_finish_s) for risk in risks] == [("a", None)]


# --- profiling runs -------------------------------------------------------------------------------------------


def measured(history: History, rate: float, at_s: float) -> int:
    """Add one measurement of job a's profiling run. Returns its number of GPUs."""
    history.decided(ALLOCATOR, now_s=at_s)
    history.decided(PLACEMENT, now_s=at_s)
    job = history.state.live_jobs["a"]
    history.then(throughput(job, rate, at_s + 0.5))
    return len(job.gpus)


def profiled(history: History, rates: dict[int, float], job_spec: JobSpec) -> list[int]:
    """Submit a job with a new profile, and measure it until its curve is complete. Returns the numbers of GPUs."""
    history.decided(ADMISSION, submit("a", model_name="new", **_range(job_spec)))
    tried = list[int]()
    while len(tried) < 9:
        history.decided(ALLOCATOR, now_s=NOW_S + len(tried))
        if known_curve(history.state, history.state.live_jobs["a"].spec or job_spec) is not None:
            break
        wanted = history.state.live_jobs["a"].num_gpus
        tried.append(measured(history, rates[wanted], NOW_S + len(tried)))
    return tried


def _range(job_spec: JobSpec) -> dict[str, Any]:
    return {"min_gpus": job_spec.min_gpus, "max_gpus": job_spec.max_gpus}


@pytest.mark.parametrize(
    ("min_gpus", "max_gpus", "tried"),
    [(1, None, [1, 2, 4, 8]), (2, 4, [2, 4]), (4, None, [4, 8]), (8, 8, [8]), (3, 5, [4])],
)
def test_a_profiling_run_measures_only_sizes_in_the_range(
    min_gpus: int, max_gpus: int | None, tried: list[int]
) -> None:
    assert profiled(pool(8), LINEAR, spec(min_gpus=min_gpus, max_gpus=max_gpus)) == tried


def test_jobs_share_measurements() -> None:
    history = pool(8)
    assert profiled(history, LINEAR, spec(min_gpus=2, max_gpus=4)) == [2, 4]
    history.decided(ADMISSION)
    history.decided(ADMISSION, submit("b", model_name="new", min_gpus=4, max_gpus=4))
    assert history.state.live_jobs["b"].phase is Phase.ADMITTED
    history.decided(ADMISSION, submit("c", model_name="new", min_gpus=4))
    assert history.state.live_jobs["c"].phase is Phase.PROFILING  # 8 GPUs are not measured
    whole = pool(8)
    assert profiled(whole, LINEAR, spec()) == [1, 2, 4, 8]
    (admitted,) = whole.decided(ADMISSION, submit("c", model_name="new", min_gpus=2, max_gpus=4))[-1:]
    assert isinstance(admitted, events.JobAdmitted)


def test_of_a_part_that_is_known_each_smaller_part_is() -> None:
    history = pool(8)
    assert profiled(history, LINEAR, spec(min_gpus=1, max_gpus=4)) == [1, 2, 4]
    history.decided(ADMISSION)
    one = SetGpuLimits(job_id="a", tenant="lab", max_gpus=2)
    (scaled,) = history.decided(ADMISSION, one)
    assert isinstance(scaled, events.GpuLimitsSet)
    (measured_already,) = history.decided(
        ADMISSION, ProfileJob(job_id="p", tenant="lab", spec=best_effort(model_name="new", max_gpus=1))
    )
    assert measured_already == events.JobProfiled(job_id="p", iterations_per_s={1: 1.0}, at_s=NOW_S)


def test_a_curve_that_ends_below_the_range_is_measured_in_it() -> None:
    history = pool(8, curves={"new/b64": {1: 1.0, 2: 1.05}})
    assert profiled(history, {8: 3.0}, spec(min_gpus=8)) == [8]


def test_a_correction_of_one_point_reaches_every_range_that_holds_it() -> None:
    history = pool(8)
    history.decided(ADMISSION, submit("a", min_gpus=4), submit("b", max_gpus=2))
    history.then(
        events.ThroughputMeasured(
            profile_key="linear/b64",
            num_gpus=4,
            iterations_per_s=3.0,
            job_id="a",
            generation=1,
            source="training",
            at_s=NOW_S + 1.0,
        )
    )
    rates = {key: dict(curve.iterations_per_s) for key, curve in history.state.curves.items()}
    assert rates["linear/b64"] == {**LINEAR, 4: 3.0}
    assert rates["linear/b64[4..]"] == {4: 3.0, 8: 8.0}
    assert rates["linear/b64[1..2]"] == {1: 1.0, 2: 2.0}
