"""Given a pool of two GPU types, each command is decided on the types that it may concern."""

from dataclasses import replace

import pytest

from elasticflow.services.admission.policy import POLICY, decide
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.services.admission.submission import submission_of
from elasticflow.services.admission.submit import cost_on_type
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import (
    ProfileJob,
    SubmitJob,
)
from elasticflow.shared.messages.pool_config import TenantQuota
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.state.idempotent_replies import idempotent_reply
from elasticflow.shared.state.pool import Demand
from testbed.histories import NOW_S, History, best_effort, pool, spec, submit
from tests.support.two_types import BOTH, answer, due_in, reserve, two_types, type_of
from tests.support.worker_events import joined, measured

GIB = 1 << 30
UNKNOWN = {"model_name": "unknown"}


# --- submissions ----------------------------------------------------------------------------------------


def test_of_types_that_keep_the_deadline_the_slowest_gets_the_job() -> None:
    history = two_types()
    admitted = answer(history, submit("a", **due_in(500.0)))
    assert (admitted.gpu_type, admitted.spec.gpu_type, type_of(history, "a")) == ("P100", "", "P100")


def test_a_deadline_that_only_the_fast_type_keeps_is_promised_there() -> None:
    history = two_types()
    assert answer(history, submit("a", **due_in(40.0))).gpu_type == ""
    assert type_of(history, "a") == ""


def test_a_job_goes_to_the_type_that_has_room() -> None:
    history = two_types()
    full = {"max_iterations": 1580, **due_in(400.0)}
    assert answer(history, submit("fills", **full, gpu_type="V100")).gpu_type == ""
    assert answer(history, submit("a", **due_in(100.0))).gpu_type == "P100"


def demand_for_a_type(*, every_s: float) -> Demand:
    """Small jobs of 100 GPU-seconds with a window of 600 s, all day long."""
    demand = Demand(since_s=NOW_S - 86_400.0)
    for number in range(500, 0, -1):
        demand = demand.added(NOW_S - every_s * number, 100.0, 600.0)
    return demand


@pytest.mark.parametrize(("wanted", "chosen"), [("", "P100"), ("P100", ""), (None, "P100")])
def test_a_job_goes_to_the_type_that_others_want_less(wanted: str | None, chosen: str) -> None:
    """Of equal prices the slow type is chosen. Here small jobs fill one of the types."""
    state = two_types().state
    demand = demand_for_a_type(every_s=20.0)
    if wanted is not None:
        state = replace(state, demand=demand) if not wanted else replace(state, demand_by_type=Map({wanted: demand}))
    history = History(state)
    admitted = answer(history, submit("a", max_iterations=300, **due_in(1000.0)))
    assert isinstance(admitted, events.JobAdmitted)
    assert admitted.gpu_type == chosen


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
    assert rejected.explanation.endswith("a deadline in 28 s would be met; on P100 one in 53 s")
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


def test_jobs_without_a_promise_go_where_they_are_done_first() -> None:
    history = two_types()
    chosen = [
        answer(history, SubmitJob(job_id=f"b{number}", tenant="lab", spec=best_effort())).gpu_type
        for number in range(6)
    ]
    assert chosen == ["", "", "", "P100", "", ""]


def test_a_job_does_not_wait_for_itself() -> None:
    """A profiling run has brought it to a type, where it counts as a live job."""

    def cost(history: History) -> float:
        session = AdmissionSession.start(history.state, NOW_S)
        command = SubmitJob(job_id="a", tenant="lab", spec=best_effort())
        return cost_on_type(session, submission_of(command, NOW_S))[1][0]

    asked = events.ProfileRequested(job_id="a", tenant="lab", spec=best_effort(), deadline_s=None, at_s=NOW_S)
    assert cost(pool(4).then(asked)) == cost(pool(4)) > 0.0
    assert cost(pool(4).then(replace(asked, job_id="b"))) > cost(pool(4))


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


def test_a_quota_names_the_hours_on_each_type() -> None:
    """The first job takes 100 GPU-seconds of V100, the second 200 of P100, and 2 for the start of each."""
    history = two_types(quotas={"lab": TenantQuota(max_gpu_hours_per_day=0.1)})
    for gpu_type in ("V100", "P100"):
        admitted = answer(history, submit(gpu_type, gpu_type=gpu_type, **due_in(1000.0)))
        assert isinstance(admitted, events.JobAdmitted)
    rejected = answer(history, submit("c", gpu_type="V100", **due_in(1000.0)))
    assert (rejected.reason, rejected.explanation.partition(" and the job")[0]) == (
        "quota",
        "0.08 of 0.10 GPU-hours a day are used (0.03 on V100, 0.06 on P100)",
    )
    assert "b" not in history.state.live_jobs


# --- several types, and memory --------------------------------------------------------------------------


def test_of_several_named_types_the_best_is_chosen() -> None:
    either = {"gpu_type": "V100", "other_gpu_types": ("P100",)}
    assert answer(two_types(), submit("a", **either, **due_in(500.0))).gpu_type == "P100"
    assert answer(two_types(), submit("a", **either, **due_in(40.0))).gpu_type == ""
    named = answer(two_types(), submit("a", gpu_type="H100", other_gpu_types=("V100",), **due_in(500.0)))
    assert (named.gpu_type, named.spec.other_gpu_types) == ("", ("V100",))
    lacking = answer(two_types(), submit("a", gpu_type="H100", other_gpu_types=("A100",)))
    assert "1 GPU of type H100 or A100, and the pool has 4 of type P100" in lacking.explanation


def test_a_job_that_needs_memory_goes_to_a_type_that_has_it() -> None:
    history = with_memory()
    assert answer(history, submit("a", gpu_memory_bytes=16 * GIB, **due_in(500.0))).gpu_type == "P100"
    assert answer(history, submit("b", gpu_memory_bytes=17 * GIB, **due_in(500.0))).gpu_type == ""


def test_memory_that_no_type_has_is_named_in_the_rejection() -> None:
    rejected = answer(with_memory(), submit("a", gpu_memory_bytes=80 * GIB))
    assert (rejected.reason, rejected.explanation) == (
        "unrunnable",
        "gpu_memory_bytes: it needs at least 1 GPU of one type with 80 GiB of memory each, "
        "and the pool has 4 of type P100 (16 GiB), 4 of type V100 (32 GiB)",
    )
    of_named_type = answer(with_memory(), submit("b", gpu_type="P100", gpu_memory_bytes=4096 * GIB)).explanation
    assert of_named_type.startswith(
        "gpu_memory_bytes: it needs at least 1 GPU of type P100 with 4,096 GiB of memory each"
    )
    unnamed = History().configured().then(replace(joined("one"), gpu_memory_bytes=4 * GIB))
    assert "4 of no named type (4 GiB)" in answer(unnamed, submit("a", gpu_memory_bytes=80 * GIB)).explanation


def test_unknown_memory_is_enough() -> None:
    assert isinstance(answer(two_types(), submit("a", gpu_memory_bytes=80 * GIB, **due_in(500.0))), events.JobAdmitted)


def with_memory() -> History:
    """V100 has 32 GiB, P100 16."""
    history = History().configured(curves=BOTH)
    for node, gpu_type, memory in (("node-0", "V100", 32), ("node-1", "P100", 16)):
        history.then(replace(joined("one", node, gpu_type=gpu_type), gpu_memory_bytes=memory * GIB))
    return history


@pytest.mark.parametrize(("slow", "offered"), [(4, ""), (8, "; on P100 one in 28 s")])
def test_types_whose_whole_curve_is_known_are_known_within_the_gpu_range_of_a_job(slow: int, offered: str) -> None:
    """Before the decision the ledger has no curve for the range of the job."""
    rejected = answer(two_types(fast=8, slow=slow), submit("a", min_gpus=8, **due_in(10.0)))
    assert rejected.explanation == (
        f"{'on V100: ' if offered else ''}100 iterations in 10 s do not fit: alone on 8 GPUs they take 14 s (8/s); "
        f"a deadline in 15 s would be met{offered}"
    )


# --- the reserve for failures ---------------------------------------------------------------------------


def test_each_type_reserves_nodes_except_its_only_one() -> None:
    history = two_types(reserve_nodes=1).then(joined("three", "node-2", num_gpus=4, gpu_type="V100"))
    wide = {"min_gpus": 4, **due_in(500.0)}
    assert isinstance(answer(history, submit("a", gpu_type="P100", **wide)), events.JobAdmitted)
    full = {"gpu_type": "V100", "max_iterations": 1500, **due_in(400.0)}
    assert isinstance(answer(history, submit("b", **full)), events.JobAdmitted)
    assert answer(history, submit("c", **full)).reason == "deadline"


def test_the_only_node_of_a_pool_of_one_type_is_reserved() -> None:
    rejected = answer(pool(4, reserve_nodes=1), submit("a", **due_in(500.0)))
    assert "kept in reserve" in rejected.explanation


def test_the_reserve_is_named_for_each_type_where_it_prevents_every_deadline() -> None:
    history = two_types(reserve_nodes=1)
    for node, gpu_type in (("node-2", "V100"), ("node-3", "P100")):
        history.then(joined("more", node, num_gpus=4, gpu_type=gpu_type))
    rejected = answer(history, submit("a", min_gpus=8, **due_in(500.0)))
    why = "on 8 GPUs: it needs at least 8 GPUs, and 4 can be promised, the others are kept in reserve for failures"
    assert rejected.explanation.count(why) == 2


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
        *(measured(key, num_gpus, rate, dataset_size=dataset_size) for num_gpus, rate in rates.items()),
        events.ProfileCompleted(profile_key=key, iterations_per_s=rates, at_s=NOW_S),
    )
