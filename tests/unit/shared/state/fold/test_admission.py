"""Given this history of admission decisions, allocations and measurements, then this state."""

from typing import Any

import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.messages.pool_config import GpuHourBudget, TenantQuota
from elasticflow.shared.state.job import Phase, StoppingWorkers
from elasticflow.shared.state.pool import Usage, gpu_hours_by_type
from testbed.histories import NOW_S, pool, spec
from tests.support.two_types import two_types
from tests.support.worker_events import admitted, job, placed, profile_requested, rejected, stopped

# --- admission ------------------------------------------------------------------------------------------


def test_an_admitted_job_waits_for_gpus() -> None:
    a = job(pool(4).then(admitted()))
    assert (a.phase, a.deadline_s, a.generation, a.gpus, a.training) == (
        Phase.ADMITTED,
        NOW_S + 100.0,
        0,
        (),
        False,
    )


def test_a_job_has_one_identity_and_a_later_one_of_its_id_another() -> None:
    history = pool(4).then(profile_requested("a"))
    first = job(history).identity
    assert job(history.then(admitted("a"))).identity == first, "its profiling run wrote in its folders"
    assert job(pool(4).then(profile_requested("a", at_s=NOW_S + 1.0))).identity != first, "in a restored ledger"
    again = pool(4).then(rejected())
    before = job(again).identity
    assert job(again.then(admitted("a", spec=spec(model_name="other")))).identity not in ("", before)


def test_an_admission_is_charged_to_its_tenant_for_a_day() -> None:
    history = pool(4).then(admitted("a"), admitted("b", at_s=NOW_S + 60.0))
    assert [usage.gpu_seconds for usage in history.state.usage["lab"]] == [50.0, 50.0]
    history.then(admitted("c", at_s=NOW_S + 86_400.5))
    assert [usage.at_s - NOW_S for usage in history.state.usage["lab"]] == [60.0, 86_400.5]


def test_charges_are_kept_for_as_long_as_a_budget_looks_back_and_are_no_more_by_that() -> None:
    week_s = 7 * 86_400.0
    quota = TenantQuota(budgets=(GpuHourBudget(max_gpu_hours=1.0, window_s=week_s),))
    history = pool(4, quotas={"lab": quota})
    for number in range(3_000):  # one in ten minutes
        history.then(admitted(f"job-{number}", at_s=NOW_S + 600.0 * number))
    usage = history.state.usage["lab"]
    assert len(usage) <= 1_441
    assert sum(used.num_jobs for used in usage) == pytest.approx(week_s / 600.0, abs=1)


def test_the_charges_of_one_minute_are_kept_together_and_of_a_day_there_are_never_many() -> None:
    history = pool(4)
    for number in range(4_000):  # two a minute
        history.then(admitted(f"job-{number}", at_s=NOW_S + 30.0 * number))
    usage = history.state.usage["lab"]
    assert len(usage) <= 1_441
    assert usage[-1] == Usage(at_s=NOW_S + 30.0 * 3_999, gpu_seconds=100.0, num_jobs=2)
    assert [used.at_s for used in usage] == sorted(used.at_s for used in usage)
    late = history.then(admitted("late", at_s=NOW_S + 30.0 * 3_999 - 200.0)).state.usage["lab"]
    assert late[-1] == Usage(at_s=NOW_S + 30.0 * 3_999, gpu_seconds=150.0, num_jobs=3)


def test_the_charges_of_one_minute_are_kept_by_type() -> None:
    history = two_types().then(*(admitted(name, gpu_type=name[:-1]) for name in ("1", "P1002", "P1003")))
    moved = events.JobAmended(
        job_id="1",
        deadline_s=NOW_S + 90.0,
        max_iterations=100,
        gpu_type="P100",
        gpu_seconds=5.0,
        minimum_satisfactory_share=(),
        at_s=NOW_S + 2.0,
    )
    limited = events.GpuLimitsSet(
        job_id="P1002", min_gpus=2, max_gpus=None, until_s=None, gpu_seconds=7.0, at_s=NOW_S + 3.0
    )
    (used,) = history.then(moved, limited).state.usage["lab"]
    assert (used.gpu_seconds, used.num_jobs) == (162.0, 3)
    assert used.on_other_types == {"P100": 112.0}
    assert gpu_hours_by_type((used,), "V100") == {
        "V100": pytest.approx(50.0 / 3_600),
        "P100": pytest.approx(112 / 3_600),
    }


def test_a_job_is_admitted_once() -> None:
    history = pool(4).then(admitted(deadline_s=NOW_S + 1.0), admitted(deadline_s=NOW_S + 2.0))
    assert job(history).deadline_s == NOW_S + 1.0
    assert len(history.state.usage["lab"]) == 1


def test_an_admitted_job_keeps_the_generation_of_its_profiling_run_and_fences_it() -> None:
    history = pool(4).then(profile_requested(), placed(1, "node-0:0"), admitted())
    a = job(history)
    assert (a.phase, a.generation, a.broken, a.training) == (Phase.ADMITTED, 1, True, False)
    history.then(placed(2, "node-0:0"))
    assert job(history).stopping == (StoppingWorkers(generation=1, node_id="node-0"),)


def test_a_rejected_profile_keeps_its_generation_until_its_workers_are_gone() -> None:
    rejection = events.JobRejected(
        job_id="a", tenant="lab", spec=spec(), reason="deadline", explanation="no", at_s=NOW_S
    )
    history = pool(4).then(profile_requested(), placed(1, "node-0:0"), rejection)
    a = job(history)
    assert (a.phase, a.rejection, a.generation, a.gpus) == (Phase.REJECTED, "deadline", 1, ())
    assert a.stopping == (StoppingWorkers(generation=1, node_id="node-0"),)
    assert job(history.then(stopped(1, "node-0"))).stopping == ()


def test_the_id_of_a_rejected_job_is_free_for_another_spec_only() -> None:
    other = spec(max_iterations=7)
    history = pool(4).then(rejected(), admitted(), profile_requested())
    assert job(history).phase is Phase.REJECTED  # the same job was rejected already
    assert job(history.then(rejected(spec=other, explanation="still no"))).explanation == "still no"
    a = job(history.then(admitted(), rejected(spec=other)))
    assert (a.phase, a.spec) == (Phase.ADMITTED, spec())
    assert "a" not in history.state.ended_jobs


def test_the_next_job_of_that_id_waits_for_the_profiling_run_of_the_previous_one() -> None:
    lent = events.AllocationDecided(num_gpus_by_job={"a": 2}, valid_until_s=None, at_s=NOW_S)
    history = pool(4).then(profile_requested(), lent, placed(1, "node-0:0", "node-0:1"), rejected())
    a = job(history.then(admitted(spec=spec(max_iterations=7))))
    assert (a.generation, a.gpus, a.num_gpus) == (1, (), 0)
    assert a.stopping == (StoppingWorkers(generation=1, node_id="node-0"),)
    assert job(history.then(lent)).num_gpus == 2  # an equal share is a new one for this job


# --- allocation -----------------------------------------------------------------------------------------


def test_an_allocation_counts_for_all_jobs_and_a_schedule_for_those_it_names() -> None:
    history = pool(4).then(admitted("a"), admitted("b"), admitted("c"))
    for shares, planned in (
        ({"a": 1, "b": 2}, {}),
        ({"a": 1, "b": 1, "ghost": 4}, {"c": (0.0, 1.0, 1.0)}),
        ({"c": 4}, {"a": (0.0, 2.0, 1.0), "ghost": ()}),
        ({}, {}),
    ):
        before = {name: job(history, name).planned_share for name in "abc"}
        history.then(events.AllocationDecided(num_gpus_by_job=shares, valid_until_s=None, planned=planned, at_s=NOW_S))
        for name in "abc":
            assert job(history, name).num_gpus == shares.get(name, 0)
            assert job(history, name).planned_share == planned.get(name, before[name])


def test_who_is_named_before_it_is_known_gets_its_share_with_the_next_allocation() -> None:
    named = events.AllocationDecided(num_gpus_by_job={"a": 2}, valid_until_s=None, at_s=NOW_S)
    history = pool(4).then(named, admitted("a"))
    assert job(history).num_gpus == 0
    assert job(history.then(named)).num_gpus == 2


# --- profiles -------------------------------------------------------------------------------------------


def measured(num_gpus: int, rate: float, at_s: float, **changes: Any) -> events.ThroughputMeasured:
    values = {"profile_key": "new", "job_id": "a", "generation": 1, "source": "profile"} | changes
    return events.ThroughputMeasured(num_gpus=num_gpus, iterations_per_s=rate, at_s=NOW_S + at_s, **values)


def test_a_curve_is_measured_point_by_point_then_complete() -> None:
    history = pool(4).then(profile_requested(), measured(1, 10.0, 1.0, dataset_size=1_797), measured(2, 18.0, 2.0))
    curve = history.state.curves["new"]
    assert (curve.iterations_per_s, curve.dataset_size, curve.complete) == ({1: 10.0, 2: 18.0}, 1_797, False)
    completed = events.ProfileCompleted(profile_key="new", iterations_per_s={1: 10.0, 2: 18.0}, at_s=NOW_S)
    assert history.then(completed).state.curves["new"].complete


def test_the_newest_measurement_of_a_point_stands() -> None:
    history = pool(4).then(measured(1, 10.0, 1.0), measured(1, 8.0, 5.0), measured(1, 10.0, 1.0))
    assert history.state.curves["new"].iterations_per_s == {1: 8.0}
