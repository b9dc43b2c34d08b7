"""Given this history, then this state."""

from dataclasses import replace
from typing import Any

import pytest

from shared.messages import events
from shared.messages.cluster import GpuHourBudget, TenantQuota
from shared.messages.events import PlacedJob
from shared.messages.fold_jobs import FORGET_AT_ONCE, MAX_ENDED_JOBS, MAX_EXPLANATION, MAX_TRACEBACK
from shared.messages.fold_nodes import KEEP_LEFT_S, KEEP_LOST_S
from shared.messages.outcome import outcome
from shared.messages.pool_state import Job, Phase, StoppingWorkers, Usage
from tests.histories import NOW_S, History, gpus, pool, spec


def admitted(job_id: str = "a", **changes: Any) -> events.JobAdmitted:
    values = {
        "tenant": "lab",
        "spec": spec(),
        "deadline_s": NOW_S + 100.0,
        "gpu_seconds": 50.0,
        "at_s": NOW_S,
    }
    values["minimum_satisfactory_share"] = ()
    return events.JobAdmitted(job_id=job_id, **(values | changes))


def profile_requested(job_id: str = "a") -> events.ProfileRequested:
    return events.ProfileRequested(
        job_id=job_id, tenant="lab", spec=spec(), deadline_s=NOW_S + 100.0, at_s=NOW_S
    )


def placed(generation: int, *names: str, job_id: str = "a") -> events.PlacementDecided:
    one = PlacedJob(job_id=job_id, generation=generation, gpus=gpus(*names))
    return events.PlacementDecided(placements=(one,), at_s=NOW_S + generation)


def crashed(generation: int, *, node: str = "node-0") -> events.WorkerCrashed:
    return events.WorkerCrashed(
        job_id="a", generation=generation, node_id=node, rank=0, explanation="signal 9", at_s=NOW_S
    )


def stopped(generation: int, node: str, iteration: int | None = None) -> events.WorkersStopped:
    return events.WorkersStopped(
        job_id="a", generation=generation, node_id=node, iteration=iteration, at_s=NOW_S
    )


def progressed(
    generation: int, iteration: int, *, checkpoint: int = 0, at_s: float = 5.0
) -> events.JobProgressed:
    return events.JobProgressed(
        job_id="a",
        generation=generation,
        iteration=iteration,
        iterations_per_s=2.0,
        checkpoint_iteration=checkpoint,
        metrics={"loss": 1.0 / iteration},
        at_s=NOW_S + at_s,
    )


def finished(generation: int) -> events.JobFinished:
    return events.JobFinished(
        job_id="a", generation=generation, iteration=100, condition="max_iterations", at_s=NOW_S + 50.0
    )


def lost(node: str = "node-0", incarnation: str = "first-0") -> events.NodeLost:
    return events.NodeLost(node_id=node, incarnation=incarnation, reason="silent", at_s=NOW_S + 9.0)


def joined(incarnation: str, node: str = "node-0", num_gpus: int = 4) -> events.NodeJoined:
    return events.NodeJoined(
        node_id=node, incarnation=incarnation, num_gpus=num_gpus, device="cpu", at_s=NOW_S + 10.0
    )


def running() -> History:
    """Job a trains in generation 1, on both nodes."""
    return pool(4, 4).then(admitted(), placed(1, "node-0:0", "node-1:0")).started("a", at_s=NOW_S + 2.0)


def job(history: History, job_id: str = "a") -> Job:
    found = history.state.job(job_id)
    assert found is not None
    return found


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


def test_a_job_is_admitted_once() -> None:
    history = pool(4).then(admitted(deadline_s=NOW_S + 1.0), admitted(deadline_s=NOW_S + 2.0))
    assert job(history).deadline_s == NOW_S + 1.0
    assert len(history.state.usage["lab"]) == 1


def test_an_admitted_profile_keeps_its_generation_and_fences_its_pre_run() -> None:
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


def rejected(**changes: Any) -> events.JobRejected:
    values = {"tenant": "lab", "spec": spec(), "reason": "deadline", "explanation": "no", "at_s": NOW_S}
    return events.JobRejected(job_id="a", **(values | changes))


def test_the_name_of_a_rejected_job_is_free_for_another_wish_only() -> None:
    other = spec(max_iterations=7)
    history = pool(4).then(rejected(), admitted(), profile_requested())
    assert job(history).phase is Phase.REJECTED  # the same wish has its answer
    assert job(history.then(rejected(spec=other, explanation="still no"))).explanation == "still no"
    a = job(history.then(admitted(), rejected(spec=other)))
    assert (a.phase, a.spec) == (Phase.ADMITTED, spec())
    assert "a" not in history.state.ended_jobs


def test_the_next_job_of_that_name_waits_for_the_pre_run_of_the_one_before() -> None:
    lent = events.AllocationDecided(num_gpus_by_job={"a": 2}, valid_until_s=None, at_s=NOW_S)
    history = pool(4).then(profile_requested(), lent, placed(1, "node-0:0", "node-0:1"), rejected())
    a = job(history.then(admitted(spec=spec(max_iterations=7))))
    assert (a.generation, a.gpus, a.num_gpus) == (1, (), 0)
    assert a.stopping == (StoppingWorkers(generation=1, node_id="node-0"),)
    assert job(history.then(lent)).num_gpus == 2  # the same share as the pre-run's is news of this one


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
        history.then(
            events.AllocationDecided(num_gpus_by_job=shares, valid_until_s=None, planned=planned, at_s=NOW_S)
        )
        for name in "abc":
            assert job(history, name).num_gpus == shares.get(name, 0)
            assert job(history, name).planned_share == planned.get(name, before[name])


def test_who_is_named_before_it_is_known_gets_its_share_with_the_next_allocation() -> None:
    named = events.AllocationDecided(num_gpus_by_job={"a": 2}, valid_until_s=None, at_s=NOW_S)
    history = pool(4).then(named, admitted("a"))
    assert job(history).num_gpus == 0
    assert job(history.then(named)).num_gpus == 2


# --- placement and the fence ----------------------------------------------------------------------------


def test_a_new_generation_waits_until_the_old_one_is_gone_from_every_node() -> None:
    history = running().then(placed(2, "node-1:1"))
    a = job(history)
    assert (a.generation, a.training, a.nodes) == (2, False, ("node-1",))
    assert {s.node_id for s in a.stopping} == {"node-0", "node-1"}
    history.then(stopped(1, "node-0", iteration=30))
    assert [s.node_id for s in job(history).stopping] == ["node-1"]
    a = job(history.then(stopped(1, "node-1")))
    assert (a.stopping, a.iteration, a.checkpoint_iteration) == ((), 30, 30)


def test_an_older_placement_is_old_news() -> None:
    history = running().then(placed(2, "node-1:1"))
    before = job(history)
    assert job(history.then(placed(1, "node-0:3"), placed(2, "node-0:3"))) == before


def test_no_gpus_means_suspended() -> None:
    history = running().then(placed(2))
    a = job(history)
    assert (a.generation, a.gpus, a.training, len(a.stopping)) == (2, (), False, 2)


def test_only_the_current_generation_starts_and_only_its_first_rendezvous_counts() -> None:
    history = pool(4).then(admitted(), placed(2, "node-0:0"))
    for generation, address in ((1, "old:1"), (2, "here:2"), (2, "there:3")):
        history.then(events.RendezvousOpened(job_id="a", generation=generation, address=address))
    old = events.GenerationStarted(job_id="a", generation=1, num_gpus=1, iteration=7, at_s=NOW_S)
    a = job(history.then(old))
    assert (a.rendezvous, a.training, a.iteration) == ("here:2", False, 0)
    assert job(history.started("a", iteration=40)).training
    assert job(history).checkpoint_iteration == 40


# --- progress and crashes -------------------------------------------------------------------------------


def test_progress_of_the_current_generation_counts_in_its_order() -> None:
    history = running().then(progressed(1, 20, checkpoint=10, at_s=6.0), progressed(1, 10, at_s=4.0))
    history.then(progressed(0, 90, at_s=9.0), progressed(2, 90, at_s=9.0))
    a = job(history)
    assert (a.iteration, a.checkpoint_iteration, a.metrics) == (20, 10, {"loss": 0.05})


def test_progress_counts_although_the_clock_of_the_node_is_ahead() -> None:
    history = pool(4).then(admitted(), placed(1, "node-0:0")).started("a", at_s=NOW_S + 3_600.0)
    assert job(history.then(progressed(1, 20))).iteration == 20


def test_a_crash_falls_back_to_the_checkpoint_and_counts_once() -> None:
    history = running().then(progressed(1, 20, checkpoint=10), crashed(1), crashed(1, node="node-1"))
    a = job(history)
    assert (a.broken, a.training, a.iteration, a.restarts) == (True, False, 10, 1)


def test_a_broken_generation_has_nothing_more_to_say() -> None:
    history = running().then(progressed(1, 20, checkpoint=10), crashed(1))
    before = job(history)
    late = events.GenerationStarted(job_id="a", generation=1, num_gpus=2, iteration=0, at_s=NOW_S)
    rendezvous = events.RendezvousOpened(job_id="a", generation=1, address="here:1")
    assert job(history.then(late, rendezvous, progressed(1, 30, checkpoint=30, at_s=9.0))) == before


def test_steps_that_the_next_crash_takes_back_are_no_progress() -> None:
    history = running()
    for generation in (1, 2, 3):
        history.then(progressed(generation, 9, at_s=10.0 * generation), crashed(generation))
        history.then(placed(generation + 1, "node-0:0")).started("a", at_s=NOW_S + 10.0 * generation)
    assert job(history).restarts == 3
    assert job(history.then(progressed(4, 12, checkpoint=12, at_s=90.0))).restarts == 0


def test_a_crash_of_a_generation_that_is_being_replaced_is_no_crash() -> None:
    a = job(running().then(placed(2, "node-1:1"), crashed(1)))
    assert (a.broken, a.restarts) == (False, 0)


def test_a_job_is_at_risk_until_its_next_generation() -> None:
    risk = events.JobAtRisk(
        job_id="a", generation=1, projected_finish_s=None, deadline_s=NOW_S + 100.0, at_s=NOW_S
    )
    history = running().then(risk)
    assert job(history).at_risk
    assert not job(history.then(placed(2, "node-0:0"), risk)).at_risk


# --- nodes ----------------------------------------------------------------------------------------------


def test_a_lost_node_breaks_its_jobs_but_is_not_their_fault() -> None:
    history = running().then(progressed(1, 20, checkpoint=10), lost())
    a = job(history)
    assert (a.broken, a.iteration, a.restarts) == (True, 10, 0)
    assert history.state.num_gpus == 4


def test_nobody_waits_for_the_workers_of_a_lost_node() -> None:
    history = running().then(placed(2, "node-1:1"), lost())
    assert [s.node_id for s in job(history).stopping] == ["node-1"]
    ended = running().then(finished(1), lost())
    assert [s.node_id for s in job(ended).stopping] == ["node-1"]


def test_a_node_comes_back_as_another_incarnation_only() -> None:
    history = running().then(lost(), joined("first-0"))
    assert not history.state.nodes["node-0"].alive
    history.then(joined("second", num_gpus=2))
    assert (history.state.nodes["node-0"].alive, history.state.num_gpus) == (True, 6)
    before = history.state
    history.then(lost(), joined("first-0"))  # told again, late
    assert replace(history.state, sequence=before.sequence) == before


def test_a_node_that_joins_anew_unasked_has_lost_its_workers() -> None:
    assert job(running().then(joined("second"))).broken
    assert not job(running().then(joined("first-0"))).broken


def test_nodes_long_gone_are_forgotten_once_no_job_stands_on_them() -> None:
    def gone(node: str, reason: Any, at_s: float) -> events.NodeLost:
        return events.NodeLost(node_id=node, incarnation="i", reason=reason, at_s=NOW_S + at_s)

    history = running().then(*[joined("i", node) for node in ("left", "silent", "stays")])
    history.then(gone("left", "left", 20.0), gone("silent", "silent", 20.0))
    history.then(events.NodeLost(node_id="node-0", incarnation="first-0", reason="left", at_s=NOW_S + 20.0))
    assert history.state.nodes["left"].left
    assert set(history.state.nodes) == {"node-0", "node-1", "left", "silent", "stays"}
    later = events.NodeJoined(
        node_id="new", incarnation="i", num_gpus=1, device="cpu", at_s=NOW_S + 20.0 + KEEP_LEFT_S + 1.0
    )
    assert set(history.then(later).state.nodes) == {"node-0", "node-1", "silent", "stays", "new"}
    history.then(placed(2, "node-1:1"))  # no job names node-0 any more
    much_later = replace(later, node_id="newer", at_s=NOW_S + 20.0 + KEEP_LOST_S + 1.0)
    assert set(history.then(much_later).state.nodes) == {"node-1", "stays", "new", "newer"}


# --- profiles -------------------------------------------------------------------------------------------


def measured(num_gpus: int, rate: float, at_s: float, **changes: Any) -> events.ThroughputMeasured:
    values = {"profile_key": "new", "job_id": "a", "generation": 1, "source": "profile"} | changes
    return events.ThroughputMeasured(num_gpus=num_gpus, iterations_per_s=rate, at_s=NOW_S + at_s, **values)


def test_a_curve_is_measured_point_by_point_then_complete() -> None:
    history = pool(4).then(
        profile_requested(), measured(1, 10.0, 1.0, dataset_size=1_797), measured(2, 18.0, 2.0)
    )
    curve = history.state.curves["new"]
    assert (curve.iterations_per_s, curve.dataset_size, curve.complete) == ({1: 10.0, 2: 18.0}, 1_797, False)
    completed = events.ProfileCompleted(profile_key="new", iterations_per_s={1: 10.0, 2: 18.0}, at_s=NOW_S)
    assert history.then(completed).state.curves["new"].complete


def test_the_newest_measurement_of_a_point_stands() -> None:
    history = pool(4).then(measured(1, 10.0, 1.0), measured(1, 8.0, 5.0), measured(1, 10.0, 1.0))
    assert history.state.curves["new"].iterations_per_s == {1: 8.0}


# --- ends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "phase"),
    [
        (finished(1), Phase.FINISHED),
        (events.JobFailed(job_id="a", generation=1, error="NaN", traceback="...", at_s=NOW_S), Phase.FAILED),
        (events.JobCancelled(job_id="a", reason="enough", at_s=NOW_S), Phase.CANCELLED),
    ],
)
def test_an_end_frees_the_gpus_and_is_final(end: Any, phase: Phase) -> None:
    history = running().then(end)
    a = job(history)
    assert (a.phase, a.gpus, a.num_gpus, len(a.stopping)) == (phase, (), 0, 2)
    assert "a" not in history.state.live_jobs
    history.then(finished(1), admitted(), placed(2, "node-0:0"), profile_requested(), crashed(1))
    assert job(history) == a


def test_a_generation_that_is_being_replaced_may_still_finish_the_job() -> None:
    history = running().then(placed(2, "node-1:1"), finished(1))
    a = job(history)
    assert (a.phase, a.iteration) == (Phase.FINISHED, 100)
    assert {(s.generation, s.node_id) for s in a.stopping} == {(1, "node-0"), (1, "node-1"), (2, "node-1")}


def test_a_generation_that_is_gone_finishes_nothing() -> None:
    history = running().then(placed(2, "node-1:1"), stopped(1, "node-0"), stopped(1, "node-1"), finished(1))
    assert job(history).live


def test_a_pre_run_does_not_finish_its_job() -> None:
    assert job(pool(4).then(profile_requested(), placed(1, "node-0:0"), finished(1))).phase is Phase.PROFILING


def test_an_end_keeps_the_last_words_of_a_long_traceback() -> None:
    failed = events.JobFailed(
        job_id="a", generation=1, error="e" * 20_000, traceback="start" + "x" * 20_000 + "the end", at_s=NOW_S
    )
    a = job(running().then(failed))
    assert (len(a.traceback), len(a.explanation)) == (MAX_TRACEBACK, MAX_EXPLANATION)
    assert a.traceback.endswith("xthe end")


def test_of_ended_jobs_the_newest_are_kept_and_those_whose_workers_still_run() -> None:
    history = pool(4).then(admitted("waits"), placed(1, "node-0:0", job_id="waits"))
    history.then(events.JobCancelled(job_id="waits", reason="", at_s=NOW_S))
    num_jobs = MAX_ENDED_JOBS + FORGET_AT_ONCE + 1
    for number in range(num_jobs):
        name = f"job-{number:05}"
        history.then(admitted(name), events.JobCancelled(job_id=name, reason="", at_s=NOW_S + number))
    state = history.state
    assert "waits" in state.ended_jobs
    assert f"job-{num_jobs - 1:05}" in state.ended_jobs
    assert state.job("job-00000") is None
    assert MAX_ENDED_JOBS <= len(state.ended_jobs) <= MAX_ENDED_JOBS + FORGET_AT_ONCE
    assert state.num_forgotten + len(state.ended_jobs) == num_jobs + 1


# --- told again -----------------------------------------------------------------------------------------


def test_who_asks_again_is_told_how_it_went_wrong() -> None:
    """Admitted is no answer for a job that will not train any more."""
    failed = events.JobFailed(job_id="a", generation=0, error="no", traceback="line 1", at_s=NOW_S + 5.0)
    cancelled = events.JobCancelled(job_id="a", reason="why not", at_s=NOW_S + 5.0)
    for before in (profile_requested(), admitted()):
        for end in (failed, cancelled):
            state = pool(4).then(before, end).state
            assert outcome(state.ended_jobs["a"]) == end


def test_who_asks_again_is_told_of_the_promise() -> None:
    state = pool(4).then(admitted()).state
    assert isinstance(outcome(state.live_jobs["a"]), events.JobAdmitted)
