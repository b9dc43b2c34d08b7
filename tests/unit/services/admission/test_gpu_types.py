"""Given a pool of two GPU types, each command is decided on the types that it may concern."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.services.admission.commands.quote_and_reserve import quote
from elasticflow.services.admission.policy import POLICY, decide
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import (
    AmendJob,
    CancelJob,
    ProfileJob,
    QuoteDeadline,
    ReserveQuote,
    SetGpuLimits,
    SubmitJob,
)
from elasticflow.shared.messages.pool_config import TenantQuota
from elasticflow.shared.state.idempotent_replies import idempotent_reply
from elasticflow.shared.state.job import Phase
from tests.support.histories import NOW_S, History, best_effort, pool, spec, submit
from tests.support.two_types import due_in, two_types, type_of
from tests.support.worker_events import joined, lost

UNKNOWN = {"model_name": "unknown"}


def answer(history: History, *commands: Any, now_s: float = NOW_S) -> Any:
    (event,) = history.decided(POLICY, *commands, now_s=now_s)
    return event


def reserve(job_id: str = "q", *, tenant: str = "lab", **changes: Any) -> ReserveQuote:
    return ReserveQuote(job_id=job_id, tenant=tenant, spec=spec(**changes), reserve_s=60.0)


# --- submissions ----------------------------------------------------------------------------------------


def test_of_types_that_keep_the_deadline_the_slowest_gets_the_job() -> None:
    history = two_types()
    admitted = answer(history, submit("a", **due_in(500.0)))
    assert (admitted.gpu_type, admitted.spec.gpu_type, type_of(history, "a")) == ("P100", "", "P100")
    assert admitted.least_gpu_seconds > admitted.least_elsewhere[""] > 0.0


def test_a_deadline_that_only_the_fast_type_keeps_is_promised_there() -> None:
    history = two_types()
    assert answer(history, submit("a", **due_in(40.0))).gpu_type == ""
    assert type_of(history, "a") == ""


def test_a_job_goes_to_the_type_that_has_room() -> None:
    history = two_types()
    full = {"max_iterations": 1580, **due_in(400.0)}
    assert answer(history, submit("fills", **full, gpu_type="V100")).gpu_type == ""
    assert answer(history, submit("a", **due_in(100.0))).gpu_type == "P100"


def test_a_named_type_is_used_although_another_is_cheaper() -> None:
    history = two_types()
    named = answer(history, submit("a", gpu_type="V100", **due_in(500.0)))
    assert (named.gpu_type, named.spec.gpu_type, type_of(history, "a")) == ("", "V100", "")
    assert answer(history, submit("b", gpu_type="P100", **due_in(40.0))).reason == "deadline"


@pytest.mark.parametrize(
    ("history", "it_has"),
    [(two_types(), "4 of type P100, 4 of type V100"), (pool(8), "8 of no named type")],
)
def test_a_type_that_the_pool_lacks_is_named_in_the_rejection(history: History, it_has: str) -> None:
    rejected = answer(history, submit("a", gpu_type="H100"))
    assert (rejected.reason, rejected.gpu_type) == ("unrunnable", "")
    assert rejected.explanation == f"gpu_type: it needs at least 1 GPU of type H100, and the pool has {it_has}"


def test_a_job_that_needs_more_gpus_than_any_type_has_is_rejected() -> None:
    rejected = answer(two_types(), submit("a", min_gpus=8))
    assert rejected.explanation.startswith("min_gpus: it needs at least 8 GPUs of one type")


def test_where_no_type_keeps_the_deadline_the_earliest_offer_counts() -> None:
    history = two_types()
    rejected = answer(history, submit("a", **due_in(20.0)))
    assert (rejected.reason, rejected.gpu_type) == ("deadline", "")
    assert rejected.explanation.startswith("on V100: 100 iterations in 20 s")
    alone = answer(two_types(), submit("a", gpu_type="V100", **due_in(20.0)))
    assert rejected.earliest_deadline_s == alone.earliest_deadline_s
    taken = submit("b", deadline_s=rejected.earliest_deadline_s)
    assert isinstance(answer(history, taken), events.JobAdmitted)


def test_an_offer_of_the_second_type_says_so_also_when_it_is_repeated() -> None:
    history = two_types()
    answer(history, submit("fills", max_iterations=3980, gpu_type="V100", **due_in(1000.0)))
    rejected = answer(history, submit("a", **due_in(20.0)))
    assert (rejected.gpu_type, rejected.spec.gpu_type) == ("P100", "")
    again = idempotent_reply(history.state, submit("a", **due_in(20.0)))
    assert isinstance(again, events.JobRejected)
    assert (again.gpu_type, again.spec) == ("P100", spec(**due_in(20.0)))


def test_a_repeated_submission_is_answered_without_a_second_decision() -> None:
    history, command = two_types(), submit("a", **due_in(500.0))
    first = answer(history, command)
    assert history.decided(POLICY, command) == ()
    again = idempotent_reply(history.state, command)
    assert isinstance(again, events.JobAdmitted)
    assert (again.gpu_type, again.spec, again.deadline_s) == ("P100", first.spec, first.deadline_s)


def test_an_id_is_unique_over_all_types() -> None:
    history = two_types()
    answer(history, submit("a", **due_in(500.0)))
    assert answer(history, submit("a", **due_in(40.0))).reason == "duplicate"
    assert answer(history, submit("a", gpu_type="V100", **due_in(500.0))).reason == "duplicate"
    assert type_of(history, "a") == "P100"


def test_jobs_without_a_promise_go_where_all_are_done_first() -> None:
    history = two_types()
    chosen = [
        answer(history, SubmitJob(job_id=f"b{number}", tenant="lab", spec=best_effort())).gpu_type
        for number in range(6)
    ]
    assert chosen == ["", "", "P100", "", "", "P100"]


def test_jobs_of_one_decision_count_for_each_other() -> None:
    together = [submit(f"j{number}", max_iterations=300, **due_in(110.0)) for number in range(3)]
    decided = decide(two_types().state, tuple(together), NOW_S)
    admitted = [event.gpu_type for event in decided if isinstance(event, events.JobAdmitted)]
    assert admitted == [""]
    assert len(decided) == 3


def test_a_quota_counts_over_all_types() -> None:
    history = two_types(quotas={"lab": TenantQuota(max_jobs_per_day=2)})
    assert answer(history, reserve("q", gpu_type="V100")).deadline_s
    assert isinstance(answer(history, submit("a", gpu_type="P100", **due_in(500.0))), events.JobAdmitted)
    rejected = answer(history, submit("b", gpu_type="P100", **due_in(500.0)))
    assert rejected.reason == "quota"
    assert "b" not in history.state.live_jobs


# --- profiles -------------------------------------------------------------------------------------------


def test_a_job_of_unknown_speed_is_measured_on_both_types_first() -> None:
    history = two_types()
    asked = answer(history, submit("a", **UNKNOWN))
    assert isinstance(asked, events.ProfileRequested)
    complete(history, "unknown/b64", {1: 1.0, 4: 4.0})
    assert history.decided(POLICY) == ()
    assert isinstance(idempotent_reply(history.state, submit("a", **UNKNOWN)), events.ProfileRequested)
    complete(history, "unknown/b64@P100", {1: 0.5, 4: 2.0})
    (admitted,) = history.decided(POLICY)
    assert (admitted.gpu_type, admitted.spec) == ("P100", spec(**UNKNOWN))


def test_a_job_that_names_its_type_is_measured_there_only() -> None:
    history = two_types()
    answer(history, submit("a", gpu_type="P100", **UNKNOWN))
    complete(history, "unknown/b64@P100", {1: 0.5, 4: 2.0})
    assert answer(history).gpu_type == "P100"


def test_a_named_type_of_a_pool_with_one_type_is_that_type() -> None:
    history = History().configured().then(joined("one", gpu_type="V100"))
    answer(history, submit("a", gpu_type="V100", **UNKNOWN))
    assert type_of(history, "a") == ""
    complete(history, "unknown/b64", {1: 1.0, 4: 4.0})
    assert isinstance(answer(history), events.JobAdmitted)


def test_a_job_of_a_named_type_waits_for_the_first_node() -> None:
    history = History().configured()
    assert answer(history, submit("a", gpu_type="P100")).waits_for == "gpus"
    history.then(joined("one", "node-0", gpu_type="V100"))
    assert history.decided(POLICY) == ()
    history.then(joined("two", "node-1", gpu_type="P100"))
    complete(history, "linear/b64@P100", {1: 1.0, 4: 4.0})
    assert answer(history).gpu_type == "P100"


def test_a_batch_larger_than_the_data_set_is_found_after_the_profile() -> None:
    history = two_types()
    answer(history, submit("a", **UNKNOWN))
    for key in ("unknown/b64", "unknown/b64@P100"):
        complete(history, key, {1: 1.0}, dataset_size=10)
    assert answer(history).reason == "invalid"


def test_a_requested_profile_is_that_of_the_first_type_or_of_the_named_one() -> None:
    named = ProfileJob(job_id="p", tenant="lab", spec=best_effort(gpu_type="P100"))
    for command, rate in ((named, 0.5), (ProfileJob(job_id="p", tenant="lab", spec=best_effort()), 1.0)):
        history = two_types()
        profiled = answer(history, command)
        assert profiled.iterations_per_s[1] == rate


def complete(history: History, key: str, rates: dict[int, float], *, dataset_size: int | None = None) -> None:
    """The profiling run of a key is over."""
    history.then(
        *(
            events.ThroughputMeasured(
                profile_key=key,
                num_gpus=num_gpus,
                iterations_per_s=rate,
                dataset_size=dataset_size,
                job_id="a",
                generation=1,
                source="profile",
                at_s=NOW_S,
            )
            for num_gpus, rate in rates.items()
        ),
        events.ProfileCompleted(profile_key=key, iterations_per_s=rates, at_s=NOW_S),
    )


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


def test_a_reserved_quote_is_taken_on_its_type() -> None:
    history = two_types()
    answer(history, submit("fills", max_iterations=3980, gpu_type="V100", **due_in(1000.0)))
    reserved = answer(history, reserve())
    assert reserved.spec.gpu_type == "P100"
    assert history.decided(POLICY, reserve()) == ()
    promised = answer(history, submit("q", deadline_s=reserved.deadline_s))
    assert (promised.gpu_type, promised.spec.gpu_type) == ("P100", "")
    assert promised.minimum_satisfactory_share == reserved.schedule
    assert not history.state.quote_reservations


def test_a_reservation_does_not_serve_a_submission_that_names_another_type() -> None:
    history = two_types()
    reserved = answer(history, reserve())
    assert reserved.spec.gpu_type == ""
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
