"""Given this history, placement moves nobody whose promise did not plan for it, and others only where it pays."""

from typing import Any

import pytest

from services.placement.policy import HAND_OVER_PATIENCE_S, POLICY
from shared.messages import events
from shared.messages.job import JobClass, JobSpec
from tests.histories import NOW_S, History, best_effort, pool, spec

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


def fragmented(small_job: Any, *, stop_s: float = 2.0, **config: Any) -> History:
    """Two nodes of 4; `small` runs alone on the first GPU of node-0, `pair` on node-1; then `big` wants four."""
    history = pool(4, 4, resize_cost_s=stop_s, **config)
    for job_id, job_spec in {"pair": spec(), "big": spec(), "small": small_job}.items():
        admitted(history, job_id, job_spec)
    allocated(history, small=1, pair=4).decided(POLICY)
    allocated(history.started("small"), small=1, pair=2).decided(POLICY)
    assert {gpu.node_id for gpu in history.state.live_jobs["small"].gpus}.isdisjoint(
        gpu.node_id for gpu in history.state.live_jobs["pair"].gpus
    )
    return allocated(history, small=1, pair=2, big=4)


def test_a_promised_job_stays_and_the_newcomer_gets_pieces() -> None:
    history = fragmented(spec())
    before = history.state.live_jobs["small"]
    (decided,) = history.decided(POLICY)
    assert decided.migrated == ()
    assert history.state.live_jobs["small"] == before
    assert len({gpu.node_id for gpu in history.state.live_jobs["big"].gpus}) == 2


def soft() -> Any:
    return spec(job_class=JobClass.SOFT, deadline_s=NOW_S + 1000.0)


@pytest.mark.parametrize("small_job", [best_effort(), soft()])
def test_a_job_without_a_promise_makes_room_where_that_pays(small_job: Any) -> None:
    history = fragmented(small_job)
    (decided,) = history.decided(POLICY)
    assert decided.migrated == ("small",)
    assert len({gpu.node_id for gpu in history.state.live_jobs["big"].gpus}) == 1
    assert history.state.live_jobs["small"].generation == 2
    assert history.decided(POLICY) == ()


@pytest.mark.parametrize(("deadline_in_s", "moves"), [(99.0, True), (101.0, False), (103.0, True)])
def test_a_soft_deadline_is_not_missed_for_the_sake_of_room(deadline_in_s: float, moves: bool) -> None:
    """100 s are left, a stop takes 2 s: what is late anyway may move, and what has the time."""
    job = spec(job_class=JobClass.SOFT, deadline_s=NOW_S + deadline_in_s)
    (decided,) = fragmented(job).decided(POLICY)
    assert bool(decided.migrated) == moves


def test_a_stop_that_costs_more_than_it_brings_is_not_made() -> None:
    """A block saves `big` a tenth of its 90 s on 4 GPUs; a stop of one GPU for 37 s costs more."""
    history = fragmented(best_effort(), stop_s=37.0)
    (decided,) = history.decided(POLICY)
    assert decided.migrated == ()


@pytest.mark.parametrize(("cluster_rate", "moves"), [(4.0, False), (2.0, True)])
def test_what_the_tables_say_by_level_decides(cluster_rate: float, moves: bool) -> None:
    curves = {"linear/b64@node": {4: 4.0}, "linear/b64@cluster": {4: cluster_rate}}
    (decided,) = fragmented(best_effort(), stop_s=30.0, curves=curves).decided(POLICY)
    assert bool(decided.migrated) == moves


def test_the_stop_counts_by_the_number_of_gpus_that_move() -> None:
    by_num_gpus = {1: 37.0, 4: 1.0}
    (decided,) = fragmented(best_effort(), resize_cost_s_by_num_gpus=by_num_gpus).decided(POLICY)
    assert decided.migrated == ()


def test_the_stop_counts_as_it_was_last_seen_here() -> None:
    history = pool(4, 4)
    for job_id, job_spec in {"pair": spec(), "big": spec(), "small": best_effort()}.items():
        admitted(history, job_id, job_spec)
    allocated(history, small=1, pair=4).decided(POLICY)
    allocated(history, small=1, pair=2).started("small", at_s=NOW_S + 37.0).decided(POLICY)
    (decided,) = allocated(history, small=1, pair=2, big=4).decided(POLICY)
    assert decided.migrated == ()


def test_a_start_under_way_is_not_disturbed() -> None:
    history = pool(4, 4)
    for job_id, job_spec in {"pair": spec(), "big": spec(), "small": best_effort()}.items():
        admitted(history, job_id, job_spec)
    allocated(history, small=1, pair=4).decided(POLICY)
    allocated(history, small=1, pair=2, big=4)
    (decided,) = history.decided(POLICY)
    assert decided.migrated == ()


def test_a_job_in_pieces_comes_together_once_there_is_room() -> None:
    history = pool(4, 4)
    for job_id, job_spec in {"pair": spec(), "big": best_effort(), "small": spec()}.items():
        admitted(history, job_id, job_spec)
    allocated(history, small=1, pair=4).decided(POLICY)
    allocated(history, small=1, pair=2, big=4).decided(POLICY)
    for job_id in ("small", "pair", "big"):
        history.started(job_id)
    assert len({gpu.node_id for gpu in history.state.live_jobs["big"].gpus}) == 2
    assert history.decided(POLICY) == ()  # no better place is free
    allocated(history.finished("pair", at_s=NOW_S), small=1, big=4)
    (decided,) = history.decided(POLICY)
    assert decided.migrated == ("big",)
    assert len({gpu.node_id for gpu in history.state.live_jobs["big"].gpus}) == 1


# --- while a job is handed over -------------------------------------------------------------------------


def handed_over(**then: int) -> History:
    """a trains on one GPU of four and is handed over to two, since NOW_S; b is admitted too; then others are wanted."""
    history = pool(4, stop_free=True)
    for job_id in "ab":
        admitted(history, job_id, best_effort())
    allocated(history, a=1).decided(POLICY, now_s=NOW_S - 9.0)
    allocated(history.started("a", at_s=NOW_S - 8.0), a=2).decided(POLICY)
    assert history.state.live_jobs["a"].handed_over
    return allocated(history, **then)


def placed_jobs(decisions: tuple[Any, ...]) -> dict[str, int]:
    return {placed.job_id: len(placed.gpus) for decided in decisions for placed in decided.placements}


OVER_S = NOW_S + HAND_OVER_PATIENCE_S


def test_another_wish_waits_until_the_job_has_gone_over() -> None:
    history = handed_over(a=4)
    assert history.decided(POLICY, now_s=OVER_S - 0.1) == ()
    allocated(history, a=1)
    assert history.decided(POLICY, now_s=OVER_S - 0.1) == ()
    history.started("a", at_s=OVER_S)
    assert placed_jobs(history.decided(POLICY, now_s=OVER_S - 0.1)) == {"a": 1}
    assert history.state.live_jobs["a"].handed_over


def test_another_wish_waits_no_longer_than_patience_has_it() -> None:
    history = handed_over(a=4)
    assert POLICY.wake_at_s(history.state) == OVER_S
    assert placed_jobs(history.decided(POLICY, now_s=OVER_S)) == {"a": 4}
    assert history.state.live_jobs["a"].predecessor is None
    assert POLICY.wake_at_s(history.state) is None


def test_nobody_wakes_for_a_job_that_has_what_it_is_to_have() -> None:
    assert POLICY.wake_at_s(handed_over(a=2).state) is None
    assert (
        POLICY.wake_at_s(handed_over(a=2, b=4).state) is None
    )  # a node is gone that the allocator has not heard of


def test_other_jobs_get_what_is_there_meanwhile() -> None:
    history = handed_over(a=1, b=2)
    assert placed_jobs(history.decided(POLICY)) == {"b": 2}
    history = handed_over(a=0, b=4)
    assert history.decided(POLICY) == ()
    assert POLICY.wake_at_s(history.state) == OVER_S
    assert placed_jobs(history.decided(POLICY, now_s=OVER_S)) == {"a": 0, "b": 4}


@pytest.mark.parametrize("generation", [1, 2])
def test_a_job_whose_workers_are_lost_is_not_waited_for(generation: int) -> None:
    crashed = events.WorkerCrashed(
        job_id="a", generation=generation, node_id="node-0", rank=0, explanation="", at_s=NOW_S
    )
    history = handed_over(a=2).then(crashed)
    assert placed_jobs(history.decided(POLICY)) == {"a": 2}


def test_what_a_lost_node_took_is_not_given_twice() -> None:
    """b lost its GPUs with node-1; a, which would give back one, is not disturbed: there is no room for b yet."""
    history = handed_over(a=2)
    history.then(
        events.NodeJoined(node_id="node-1", incarnation="i", num_gpus=4, device="cpu", at_s=NOW_S),
    )
    allocated(history, a=2, b=4).decided(POLICY)
    history.then(events.NodeLost(node_id="node-1", incarnation="i", reason="silent", at_s=NOW_S))
    allocated(history, a=0, b=4)
    assert history.decided(POLICY) == ()
    assert placed_jobs(history.decided(POLICY, now_s=OVER_S)) == {"a": 0, "b": 4}


# --- survivors go on without who is gone ----------------------------------------------------------------


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


def test_survivors_go_on_where_they_are_and_get_their_replacement_once_they_train() -> None:
    history = trains_on_four()
    whole = history.state.live_jobs["a"].gpus
    crash(history, 1).decided(POLICY)
    a = history.state.live_jobs["a"]
    assert (a.gpus, a.regroups) == ((whole[0], *whole[2:]), True)
    assert history.decided(POLICY, now_s=OVER_S + 100.0) == (), "nobody is waited for, nor disturbed"
    assert POLICY.wake_at_s(history.state) is None
    history.started("a").decided(POLICY)
    a = history.state.live_jobs["a"]
    assert (a.gpus, a.training_generation) == (whole, 2)


def test_what_survivors_wait_for_is_given_to_nobody() -> None:
    history = crash(trains_on_four(), 1)
    history.decided(POLICY)
    allocated(history, a=4, b=4).decided(POLICY)
    assert {gpu.node_id for gpu in history.state.live_jobs["b"].gpus} == {"node-1"}
    history.started("a").decided(POLICY)
    assert {gpu.node_id for gpu in history.state.live_jobs["a"].gpus} == {"node-0"}


def test_whoever_is_lost_meanwhile_leaves_fewer_and_the_last_one_goes_on_alone() -> None:
    history = trains_on_four()
    whole = history.state.live_jobs["a"].gpus
    for rank, left in ((1, (0, 2, 3)), (3, (0, 2)), (0, (2,))):
        crash(history, rank).decided(POLICY)
        assert history.state.live_jobs["a"].gpus == tuple(whole[i] for i in left)
    crash(history, 2).decided(POLICY)
    a = history.state.live_jobs["a"]
    assert (a.gpus, a.predecessor) == (whole, None), "nobody has the state: all begin anew, where they were"


def test_who_survives_a_lost_node_does_not_wait_for_the_allocator() -> None:
    history = pool(2, 2, stop_free=True)
    admitted(history, "a", best_effort())
    allocated(history, a=4).decided(POLICY)
    history.started("a").then(
        events.NodeLost(node_id="node-1", incarnation="first-1", reason="silent", at_s=NOW_S)
    )
    history.decided(POLICY)
    assert {gpu.node_id for gpu in history.state.live_jobs["a"].gpus} == {"node-0"}
    assert history.started("a").decided(POLICY) == ()
    assert allocated(history, a=2).decided(POLICY) == (), "it has what is left for it"


def test_a_job_that_cannot_run_on_so_few_waits_for_its_replacement() -> None:
    history = trains_on_four(best_effort(min_gpus=4))
    whole = history.state.live_jobs["a"].gpus
    crash(history, 1).decided(POLICY)
    assert history.state.live_jobs["a"].gpus == whole


def test_survivors_that_are_to_be_fewer_or_none_go_on_as_such() -> None:
    history = allocated(crash(trains_on_four(), 1), a=2)
    assert placed_jobs(history.decided(POLICY)) == {"a": 2}
    history = crash(trains_on_four(), 1)
    history.decided(POLICY)
    allocated(history, b=4)
    assert history.decided(POLICY, now_s=OVER_S)[0].placements[0].gpus == ()
