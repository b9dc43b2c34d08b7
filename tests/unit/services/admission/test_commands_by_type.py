"""Given a pool of two GPU types, quotes and commands about a job are decided on the types that they concern."""

from dataclasses import replace
from typing import Any

from elasticflow.services.admission.policy import POLICY
from elasticflow.services.admission.quote import quote
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import (
    AmendJob,
    CancelJob,
    QuoteDeadline,
    SetGpuLimits,
)
from elasticflow.shared.messages.gpus import segments
from elasticflow.shared.messages.pool_config import TenantQuota
from elasticflow.shared.scheduling.admission.planned_pool import planned_pool
from elasticflow.shared.state.gpu_types import part_of_type
from elasticflow.shared.state.job import Phase
from testbed.histories import NOW_S, History, spec, submit
from tests.support.two_types import answer, due_in, reserve, two_types, type_of
from tests.support.worker_events import lost

# --- quotes and reservations ----------------------------------------------------------------------------


def quoted(history: History, **changes: Any) -> Any:
    return quote(history.state, QuoteDeadline(tenant="lab", spec=spec(**changes)), NOW_S)


def test_a_quote_is_that_of_the_earliest_type() -> None:
    history = two_types()
    assert quoted(history).gpu_type == "V100"
    assert quoted(history) == quoted(history, gpu_type="V100")
    assert quoted(history, gpu_type="P100").earliest_deadline_s > quoted(history).earliest_deadline_s
    answer(history, submit("fills", max_iterations=3980, gpu_type="V100", **due_in(1000.0)))
    assert quoted(history).gpu_type == "P100"


def test_a_quote_for_a_type_that_the_pool_lacks_says_so() -> None:
    unknown = quoted(two_types(), gpu_type="H100")
    assert unknown.earliest_deadline_s is None
    assert "type H100" in unknown.explanation


def test_without_a_quote_the_reason_on_each_type_is_named() -> None:
    why = "its speed is not known yet"
    for explanation in (
        quoted(two_types(), model_name="unknown").explanation,
        answer(two_types(), reserve(model_name="unknown")).explanation,
    ):
        assert explanation.startswith(f"on V100: {why}")
        assert f"; on P100: {why}" in explanation


def test_a_reserved_quote_is_taken_on_its_type() -> None:
    history = two_types()
    answer(history, submit("fills", max_iterations=3980, gpu_type="V100", **due_in(1000.0)))
    reserved = answer(history, reserve())
    assert reserved.spec.gpu_type == reserved.gpu_type == "P100"
    assert history.decided(POLICY, reserve()) == ()
    promised = answer(history, submit("q", deadline_s=reserved.deadline_s))
    assert (promised.gpu_type, promised.spec.gpu_type) == ("P100", "")
    assert promised.minimum_satisfactory_share == reserved.schedule
    assert not history.state.quote_reservations


def test_a_reservation_does_not_serve_a_submission_that_names_another_type() -> None:
    history = two_types()
    reserved = answer(history, reserve())
    assert (reserved.spec.gpu_type, reserved.gpu_type) == ("", "V100")
    promised = answer(history, submit("q", gpu_type="P100", deadline_s=reserved.deadline_s + 500.0))
    assert promised.gpu_type == "P100"


def test_a_name_is_reserved_once_over_all_types() -> None:
    history = two_types()
    answer(history, submit("a", gpu_type="P100", **due_in(500.0)))
    assert "names another job" in answer(history, reserve("a", gpu_type="V100")).explanation
    answer(history, reserve("q", gpu_type="V100"))
    for other in (reserve("q", gpu_type="P100"), reserve("q", tenant="other")):
        assert "names another job or quote" in answer(history, other).explanation
    assert "type H100" in answer(history, reserve("r", gpu_type="H100")).explanation


def test_a_quota_counts_reservations_of_all_types() -> None:
    history = two_types(quotas={"lab": TenantQuota(max_jobs_per_day=1)})
    assert answer(history, reserve("q", gpu_type="V100")).deadline_s
    assert isinstance(answer(history, reserve("r", gpu_type="P100")), events.QuoteRejected)
    assert list(history.state.quote_reservations) == ["q"]


def test_a_reservation_of_a_named_type_needs_gpus() -> None:
    rejected = answer(History().configured(), reserve(gpu_type="P100"))
    assert rejected.explanation == "gpu_type: it needs at least 1 GPU of type P100, and the pool has none"


# --- commands about a job of the second type ------------------------------------------------------------


def of_second_type() -> History:
    history = two_types()
    answer(history, submit("a", gpu_type="P100", **due_in(500.0)))
    return history


def test_an_amendment_is_planned_on_the_type_of_the_job() -> None:
    history = of_second_type()
    rejected = answer(history, AmendJob(job_id="a", tenant="lab", deadline_s=NOW_S + 40.0))
    assert isinstance(rejected, events.AmendRejected)
    amended = answer(history, AmendJob(job_id="a", tenant="lab", deadline_s=NOW_S + 80.0))
    assert isinstance(amended, events.JobAmended)
    assert (type_of(history, "a"), history.state.live_jobs["a"].deadline_s) == ("P100", NOW_S + 80.0)


def test_gpu_limits_are_planned_on_the_type_of_the_job() -> None:
    history = of_second_type()
    assert isinstance(answer(history, SetGpuLimits(job_id="a", tenant="lab", max_gpus=2)), events.GpuLimitsSet)
    assert type_of(history, "a") == "P100"
    rejected = answer(history, SetGpuLimits(job_id="a", tenant="lab", min_gpus=8))
    assert isinstance(rejected, events.GpuLimitsRejected)
    assert rejected.explanation == (
        "it runs on 1, 2 or 4 GPUs here; the pool has 4; 4 would be possible; "
        "only GPUs of its type P100 count, because GPU limits do not change the type"
    )


def test_an_amendment_counts_quotes_that_are_reserved_on_another_type() -> None:
    """The job needs 202 GPU-seconds, the quote 108, and the amendment 200 more."""
    for hours, answered in ((450.0 / 3600, events.AmendRejected), (520.0 / 3600, events.JobAmended)):
        history = two_types(quotas={"lab": TenantQuota(max_gpu_hours_per_day=hours)})
        answer(history, submit("a", gpu_type="P100", **due_in(2000.0)))
        answer(history, reserve("q", gpu_type="V100"))
        assert isinstance(answer(history, AmendJob(job_id="a", tenant="lab", max_iterations=200)), answered)


def test_gpu_limits_expire_on_any_type() -> None:
    history = of_second_type()
    answer(history, SetGpuLimits(job_id="a", tenant="lab", max_gpus=2, until_s=NOW_S + 10.0))
    assert isinstance(answer(history, now_s=NOW_S + 10.0), events.GpuLimitsCleared)


def test_a_cancelled_job_leaves_room_for_the_next_command_of_the_decision() -> None:
    history = two_types()
    full = {"gpu_type": "P100", "max_iterations": 780, **due_in(400.0)}
    assert isinstance(answer(history, submit("a", **full)), events.JobAdmitted)
    assert answer(history, submit("b", **full)).reason == "deadline"
    cancelled, admitted = history.decided(POLICY, CancelJob(job_id="a", tenant="lab"), submit("c", **full))
    assert isinstance(cancelled, events.JobCancelled)
    assert isinstance(admitted, events.JobAdmitted)
    assert history.state.ended_jobs["a"].phase is Phase.CANCELLED


def test_a_command_about_no_live_job_is_answered() -> None:
    rejected = answer(two_types(), AmendJob(job_id="gone", tenant="lab", deadline_s=NOW_S + 80.0))
    assert isinstance(rejected, events.AmendRejected)


def test_the_first_type_is_not_offered_when_its_gpus_are_lost() -> None:
    history = two_types().then(replace(lost("node-0", "one"), at_s=NOW_S))
    assert answer(history, submit("a", **due_in(500.0))).gpu_type == "P100"
    assert answer(history, submit("b", gpu_type="V100", **due_in(500.0))).reason == "unrunnable"


# --- amendments that the job's type cannot keep ---------------------------------------------------------


def on_slow_type(seconds: float = 500.0, **config: Any) -> History:
    """A job on P100, the slowest type that keeps its deadline, although its user leaves the type open."""
    history = two_types(**config)
    assert answer(history, submit("a", **due_in(seconds))).gpu_type == "P100"
    return history


def amend(**terms: Any) -> AmendJob:
    return AmendJob(job_id="a", tenant="lab", **terms)


def test_an_amendment_that_the_own_type_cannot_keep_moves_the_job() -> None:
    history = on_slow_type()
    amended = answer(history, amend(deadline_s=NOW_S + 40.0))
    assert isinstance(amended, events.JobAmended)
    assert amended.gpu_type == "", "the first type, V100"
    a = history.state.live_jobs["a"]
    assert (type_of(history, "a"), a.deadline_s, a.planned_share) == (
        "",
        NOW_S + 40.0,
        amended.minimum_satisfactory_share,
    )
    assert list(segments(a.planned_share))[-1].end_s <= NOW_S + 40.0
    assert planned_pool(part_of_type(history.state, "V100"), NOW_S).plan.late == ()


def test_an_amendment_that_the_own_type_keeps_moves_nothing() -> None:
    history = on_slow_type()
    assert answer(history, amend(deadline_s=NOW_S + 80.0)).gpu_type is None
    assert type_of(history, "a") == "P100"


def test_of_an_amendment_that_no_type_keeps_the_reason_on_each_is_named() -> None:
    history = on_slow_type()
    rejected = answer(history, amend(deadline_s=NOW_S + 5.0))
    assert rejected.explanation.startswith("on P100: 100 more iterations in 5 s cannot be kept")
    assert rejected.explanation.endswith("; beside the promises on V100 it would end in 28 s at the earliest")
    assert type_of(history, "a") == "P100"


def test_a_job_whose_user_named_the_type_is_not_amended_elsewhere() -> None:
    rejected = answer(of_second_type(), amend(deadline_s=NOW_S + 40.0))
    assert isinstance(rejected, events.AmendRejected)
    assert "V100" not in rejected.explanation


def test_a_quota_counts_what_an_amendment_takes_on_another_type() -> None:
    """The job has 202 GPU-seconds on P100, and 150 more iterations take about 250 on V100."""
    for hours, answered in ((210.0 / 3600, events.AmendRejected), (300.0 / 3600, events.JobAmended)):
        history = on_slow_type(quotas={"lab": TenantQuota(max_gpu_hours_per_day=hours)})
        found = answer(history, amend(max_iterations=250, deadline_s=NOW_S + 100.0))
        assert isinstance(found, answered), found
