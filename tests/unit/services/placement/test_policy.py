"""Placement makes room for promised jobs, and moves other jobs only where the migration benefit is higher."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import MAX_SWITCH_S, POLICY
from elasticflow.shared.messages import events
from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.scheduling.admission.planned_pool import planned_pool
from testbed.histories import NOW_S, History, best_effort, pool, spec
from tests.support.worker_events import joined

PLAN = (NOW_S, NOW_S + 90.0)


def admitted(history: History, job_id: str, job_spec: Any) -> History:
    event = events.JobAdmitted(
        job_id=job_id,
        tenant="lab",
        spec=job_spec,
        deadline_s=job_spec.deadline_s,
        minimum_satisfactory_share=(),
        gpu_seconds=0.0,
        at_s=NOW_S,
    )
    return history.then(
        events.PlanDecided(service="admission", based_on=history.state.sequence, now_s=NOW_S, events=(event,))
    )


def allocated(history: History, **shares: int) -> History:
    planned = {
        job_id: (*PLAN, float(num_gpus))
        for job_id, num_gpus in shares.items()
        if history.state.live_jobs[job_id].promised
    }
    event = events.AllocationDecided(num_gpus_by_job=shares, valid_until_s=None, planned=planned, at_s=NOW_S)
    return history.then(
        events.PlanDecided(service="allocator", based_on=history.state.sequence, now_s=NOW_S, events=(event,))
    )


def fragmented(small_job: Any, *, stop_s: float = 2.0, pair: Any = None, big: Any = None, **config: Any) -> History:
    """Two nodes of 4; `small` runs alone on the first GPU of node-0, `pair` on node-1; then `big` wants four."""
    history = pool(4, 4, resize_cost_s=stop_s, **config)
    for job_id, job_spec in {"pair": pair or spec(), "big": big or spec(), "small": small_job}.items():
        admitted(history, job_id, job_spec)
    allocated(history, small=1, pair=4).decided(POLICY)
    allocated(history.started("small"), small=1, pair=2).decided(POLICY)
    assert {gpu.node_id for gpu in history.state.live_jobs["small"].gpus}.isdisjoint(
        gpu.node_id for gpu in history.state.live_jobs["pair"].gpus
    )
    return allocated(history, small=1, pair=2, big=4)


def test_a_promised_job_with_room_in_its_schedule_makes_room_for_another() -> None:
    """The schedule of `pair` holds 176 iterations, and 100 are left; that of `small` holds 90."""
    history = fragmented(spec())
    before = history.state.live_jobs["small"]
    (decided,) = history.decided(POLICY)
    assert decided.migrated == ("pair",)
    jobs = history.state.live_jobs
    assert jobs["small"] == before
    assert {gpu.node_id for gpu in jobs["pair"].gpus} == {gpu.node_id for gpu in before.gpus}
    assert len({gpu.node_id for gpu in jobs["big"].gpus}) == 1
    assert jobs["pair"].migrated_at_s == NOW_S


def test_a_job_without_room_in_its_schedule_moves_where_another_plan_keeps_all_promises() -> None:
    """The schedule of `small` holds 90 of 100 iterations, but it may have more GPUs; that of `pair` 176 of 200."""
    history = fragmented(spec(), pair=spec(max_iterations=200))
    (decided,) = history.decided(POLICY)
    assert decided.migrated == ("small",)
    assert len({gpu.node_id for gpu in history.state.live_jobs["big"].gpus}) == 1
    assert decided.needs_other_plan
    plan = planned_pool(history.state, NOW_S)
    assert plan.plan.late_jobs == ()
    assert "small" in plan.changed_schedules()
    assert history.decided(ALLOCATOR), "the plan on which the migration rests"
    assert "small" not in planned_pool(history.state, NOW_S).changed_schedules()


@pytest.mark.parametrize("config", [{}, {"migration_budget": 0.0}])
def test_without_room_or_budget_promised_jobs_stay_and_the_arriving_job_gets_fragments(config: dict[str, Any]) -> None:
    """Neither job may have more GPUs, and each has a second more than it and its start need: a migration takes two."""
    tight = {} if config else {"deadline_s": NOW_S + 103.0}
    small, pair = spec(max_gpus=1, **tight), spec(max_gpus=2, max_iterations=200, **tight)
    history = fragmented(spec() if config else small, pair=spec() if config else pair, **config)
    (decided,) = history.decided(POLICY, now_s=NOW_S + 50.0)
    assert decided.migrated == ()
    assert len({gpu.node_id for gpu in history.state.live_jobs["big"].gpus}) == 2


def test_jobs_that_switch_without_a_stop_take_turns() -> None:
    """`pair` migrates to free GPUs in a decision of its own: a job that leaves GPUs to another one would stop."""
    history = fragmented(spec(), stop_free=True)
    history.started("pair")
    first, second = history.decided(POLICY)
    assert ([placed.job_id for placed in first.placements], first.migrated) == (["pair"], ("pair",))
    assert ([placed.job_id for placed in second.placements], second.migrated) == (["big"], ())
    pair = history.state.live_jobs["pair"]
    assert pair.previous_generation is not None
    assert pair.previous_generation.trains


def soft() -> Any:
    return spec(job_class=JobClass.SOFT, deadline_s=NOW_S + 1000.0)


@pytest.mark.parametrize("small_job", [best_effort(), soft()])
def test_a_job_without_a_promise_migrates_where_the_benefit_exceeds_the_cost(small_job: Any) -> None:
    history = fragmented(small_job)
    (decided,) = history.decided(POLICY)
    assert decided.migrated == ("small",)
    assert len({gpu.node_id for gpu in history.state.live_jobs["big"].gpus}) == 1
    assert history.state.live_jobs["small"].generation == 2
    assert history.decided(POLICY) == ()


@pytest.mark.parametrize(("deadline_in_s", "moves"), [(99.0, True), (101.0, False), (103.0, True)])
def test_no_migration_makes_a_job_miss_its_soft_deadline(deadline_in_s: float, moves: bool) -> None:
    """100 s are left, a stop takes 2 s: a job that is late anyway may move, and one that has the time."""
    job = spec(job_class=JobClass.SOFT, deadline_s=NOW_S + deadline_in_s)
    (decided,) = fragmented(job, big=best_effort()).decided(POLICY)
    assert bool(decided.migrated) == moves


def test_a_migration_that_costs_more_than_its_benefit_is_not_made() -> None:
    """A block saves `big` a tenth of its 25 s on 4 GPUs; a stop of one GPU for 11 s costs more."""
    history = fragmented(best_effort(), stop_s=11.0, big=best_effort())
    (decided,) = history.decided(POLICY)
    assert decided.migrated == ()


@pytest.mark.parametrize(("cluster_rate", "moves"), [(4.0, False), (2.0, True)])
def test_throughput_by_topology_level_decides_on_a_migration(cluster_rate: float, moves: bool) -> None:
    curves = {"linear/b64@node": {4: 4.0}, "linear/b64@cluster": {4: cluster_rate}}
    (decided,) = fragmented(best_effort(), stop_s=30.0, big=best_effort(), curves=curves).decided(POLICY)
    assert bool(decided.migrated) == moves


def test_the_cost_of_a_migration_counts_the_gpus_that_move() -> None:
    by_num_gpus = {1: 11.0, 4: 1.0}
    (decided,) = fragmented(best_effort(), big=best_effort(), resize_cost_s_by_num_gpus=by_num_gpus).decided(POLICY)
    assert decided.migrated == ()


def test_the_cost_of_a_migration_follows_the_observed_start_cost() -> None:
    history = pool(4, 4)
    for job_id, job_spec in {"pair": spec(), "big": best_effort(), "small": best_effort()}.items():
        admitted(history, job_id, job_spec)
    allocated(history, small=1, pair=4).decided(POLICY)
    allocated(history, small=1, pair=2).started("small", at_s=NOW_S + 37.0).decided(POLICY)
    (decided,) = allocated(history, small=1, pair=2, big=4).decided(POLICY)
    assert decided.migrated == ()


def test_a_start_under_way_is_not_disturbed() -> None:
    history = pool(4, 4)
    for job_id, job_spec in {"pair": spec(), "big": best_effort(), "small": best_effort()}.items():
        admitted(history, job_id, job_spec)
    allocated(history, small=1, pair=4).decided(POLICY)
    allocated(history, small=1, pair=2, big=4)
    (decided,) = history.decided(POLICY)
    assert decided.migrated == ()


def test_a_fragmented_job_gets_a_block_once_one_is_free() -> None:
    history = pool(4, 4)
    for job_id, job_spec in {"pair": spec(), "big": best_effort(), "small": spec()}.items():
        admitted(history, job_id, job_spec)
    allocated(history, small=1, pair=4).decided(POLICY)
    allocated(history, small=1, pair=2, big=4).decided(POLICY)
    for job_id in ("small", "pair", "big"):
        history.started(job_id)
    assert len({gpu.node_id for gpu in history.state.live_jobs["big"].gpus}) == 2
    assert history.decided(POLICY) == ()  # no better block is free
    allocated(history.finished("pair", at_s=NOW_S), small=1, big=4)
    (decided,) = history.decided(POLICY)
    assert decided.migrated == ("big",)
    assert len({gpu.node_id for gpu in history.state.live_jobs["big"].gpus}) == 1


# --- while workers switch ------------------------------------------------------------------------------


def is_switching(**then: int) -> History:
    """Job a trains on one GPU of four and switches to two at NOW_S; b is admitted too; then the shares change."""
    history = pool(4, stop_free=True)
    for job_id in "ab":
        admitted(history, job_id, best_effort())
    allocated(history, a=1).decided(POLICY, now_s=NOW_S - 9.0)
    allocated(history.started("a", at_s=NOW_S - 8.0), a=2).decided(POLICY)
    assert history.state.live_jobs["a"].is_switching
    return allocated(history, **then)


def placed_jobs(decisions: tuple[Any, ...]) -> dict[str, int]:
    return {placed.job_id: len(placed.gpus) for decided in decisions for placed in decided.placements}


OVER_S = NOW_S + MAX_SWITCH_S


def test_another_share_waits_until_the_switch_is_complete() -> None:
    history = is_switching(a=4)
    assert history.decided(POLICY, now_s=OVER_S - 0.1) == ()
    allocated(history, a=1)
    assert history.decided(POLICY, now_s=OVER_S - 0.1) == ()
    history.started("a", at_s=OVER_S)
    assert placed_jobs(history.decided(POLICY, now_s=OVER_S - 0.1)) == {"a": 1}
    assert history.state.live_jobs["a"].is_switching


def test_another_share_waits_no_longer_than_a_switch_may_take() -> None:
    history = is_switching(a=4)
    assert POLICY.wake_at_s(history.state) == OVER_S
    assert placed_jobs(history.decided(POLICY, now_s=OVER_S)) == {"a": 4}
    assert history.state.live_jobs["a"].previous_generation is None
    assert POLICY.wake_at_s(history.state) is None


def test_the_service_does_not_wake_for_a_job_that_holds_its_share() -> None:
    assert POLICY.wake_at_s(is_switching(a=2).state) is None
    assert (
        POLICY.wake_at_s(is_switching(a=2, b=4).state) is None
    )  # a node is lost that the allocator does not know of yet


def test_other_jobs_get_free_gpus_during_a_switch() -> None:
    history = is_switching(a=1, b=2)
    assert placed_jobs(history.decided(POLICY)) == {"b": 2}
    history = is_switching(a=0, b=4)
    assert history.decided(POLICY) == ()
    assert POLICY.wake_at_s(history.state) == OVER_S
    assert placed_jobs(history.decided(POLICY, now_s=OVER_S)) == {"a": 0, "b": 4}


@pytest.mark.parametrize("generation", [1, 2])
def test_a_switch_whose_workers_are_lost_is_not_waited_for(generation: int) -> None:
    crashed = events.WorkerCrashed(
        job_id="a", generation=generation, node_id="node-0", rank=0, explanation="", at_s=NOW_S
    )
    history = is_switching(a=2).then(crashed)
    assert placed_jobs(history.decided(POLICY)) == {"a": 2}


def test_gpus_of_a_lost_node_are_not_given_to_another_job() -> None:
    """b lost its GPUs with node-1; a, which would give back one, is not disturbed: no GPU is free for b yet."""
    history = is_switching(a=2)
    history.then(
        events.NodeJoined(node_id="node-1", incarnation="i", num_gpus=4, device="cpu", at_s=NOW_S),
    )
    allocated(history, a=2, b=4).decided(POLICY)
    history.then(events.NodeLost(node_id="node-1", incarnation="i", reason="silent", at_s=NOW_S))
    allocated(history, a=0, b=4)
    assert history.decided(POLICY) == ()
    assert placed_jobs(history.decided(POLICY, now_s=OVER_S)) == {"a": 0, "b": 4}


# --- survivors train on without lost workers ------------------------------------------------------------


def trains_on_four(job_spec: JobSpec | None = None) -> History:
    """a trains on the four GPUs of node-0; node-1 has four more."""
    history = pool(4, 4, stop_free=True)
    admitted(history, "a", job_spec or best_effort())
    admitted(history, "b", best_effort())
    allocated(history, a=4).decided(POLICY, now_s=NOW_S - 9.0)
    return history.started("a", at_s=NOW_S - 8.0)


def crash(history: History, rank: int, generation: int = 1) -> History:
    crashed = events.WorkerCrashed(
        job_id="a", generation=generation, node_id="node-0", rank=rank, explanation="", at_s=NOW_S
    )
    return history.then(crashed)


def test_survivors_train_on_their_gpus_and_get_a_replacement_once_they_train() -> None:
    history = trains_on_four()
    whole = history.state.live_jobs["a"].gpus
    crash(history, 1).decided(POLICY)
    a = history.state.live_jobs["a"]
    assert (a.gpus, a.shrinks_to_survivors) == ((whole[0], *whole[2:]), True)
    assert history.decided(POLICY, now_s=OVER_S + 100.0) == (), "survivors are not disturbed"
    assert POLICY.wake_at_s(history.state) is None
    history.started("a").decided(POLICY)
    a = history.state.live_jobs["a"]
    assert (a.gpus, a.training_generation) == (whole, 2)


def test_reserved_gpus_of_survivors_are_given_to_no_other_job() -> None:
    history = crash(trains_on_four(), 1)
    history.decided(POLICY)
    allocated(history, a=4, b=4).decided(POLICY)
    assert {gpu.node_id for gpu in history.state.live_jobs["b"].gpus} == {"node-1"}
    history.started("a").decided(POLICY)
    assert {gpu.node_id for gpu in history.state.live_jobs["a"].gpus} == {"node-0"}


def test_further_losses_leave_fewer_survivors_and_the_last_one_trains_alone() -> None:
    history = trains_on_four()
    whole = history.state.live_jobs["a"].gpus
    for rank, left in ((1, (0, 2, 3)), (3, (0, 2)), (0, (2,))):
        crash(history, rank).decided(POLICY)
        assert history.state.live_jobs["a"].gpus == tuple(whole[i] for i in left)
    crash(history, 2).decided(POLICY)
    a = history.state.live_jobs["a"]
    assert (a.gpus, a.previous_generation) == (whole, None), "no worker holds the state: all start anew on their GPUs"


def test_survivors_of_a_lost_node_do_not_wait_for_the_allocator() -> None:
    history = pool(2, 2, stop_free=True)
    admitted(history, "a", best_effort())
    allocated(history, a=4).decided(POLICY)
    history.started("a").then(events.NodeLost(node_id="node-1", incarnation="first-1", reason="silent", at_s=NOW_S))
    history.decided(POLICY)
    assert {gpu.node_id for gpu in history.state.live_jobs["a"].gpus} == {"node-0"}
    assert history.started("a").decided(POLICY) == ()
    assert allocated(history, a=2).decided(POLICY) == (), "it holds what is left of its share"


def test_a_job_that_cannot_run_on_so_few_waits_for_its_replacement() -> None:
    history = trains_on_four(best_effort(min_gpus=4))
    whole = history.state.live_jobs["a"].gpus
    crash(history, 1).decided(POLICY)
    assert history.state.live_jobs["a"].gpus == whole


def test_survivors_with_a_smaller_share_are_placed_like_any_other_job() -> None:
    history = allocated(crash(trains_on_four(), 1), a=2)
    assert placed_jobs(history.decided(POLICY)) == {"a": 2}
    history = crash(trains_on_four(), 1)
    history.decided(POLICY)
    allocated(history, b=4)
    assert history.decided(POLICY, now_s=OVER_S)[0].placements[0].gpus == ()


def test_workers_that_see_gpus_which_the_job_gave_back_start_anew() -> None:
    """Another job may get these (docs/adr/0115)."""
    history = pool(4, 4, stop_free=True)
    for node_id in ("node-0", "node-1"):
        history.then(replace(joined("second", node_id), separates_gpus=True))
    admitted(history, "a", best_effort())
    allocated(history, a=4).decided(POLICY, now_s=NOW_S - 9.0)
    history.started("a", at_s=NOW_S - 8.0)
    crash(crash(history, 1), 2).decided(POLICY)
    history.started("a", at_s=NOW_S + 1.0)
    survivors = history.state.live_jobs["a"].gpus
    assert len(history.state.live_jobs["a"].shown_gpus) == 4
    allocated(history, a=len(survivors)).decided(POLICY, now_s=OVER_S)
    a = history.state.live_jobs["a"]
    assert (a.gpus, a.shown_gpus) == (survivors, tuple(sorted(survivors)))
    assert not a.is_switching
    assert history.decided(POLICY, now_s=OVER_S) == (), "once"
