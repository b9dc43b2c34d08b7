"""Each baseline's own rule, on cases small enough to be done by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest

from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost, ScalingCurve
from elasticflow.simulator.baselines.baseline import Baseline, BaselineJob, Wait
from elasticflow.simulator.baselines.edf import (
    EarliestDeadlineFirst,
    EarliestDeadlineFirstElastic,
    EarliestDeadlineFirstWithAdmission,
)
from elasticflow.simulator.baselines.lease_schedulers import (
    Chronus,
    Gandiva,
    Themis,
    ThemisInSlots,
    fair_time_shares,
    finish_time_fairness,
)
from elasticflow.simulator.baselines.policy_catalogue import BASELINES
from elasticflow.simulator.baselines.schedulers_without_deadlines import (
    ElasticTiresias,
    Pollux,
    StaticPriority,
    Tiresias,
    WeightedFairSharing,
)

LINEAR = ScalingCurve((1, 2, 4, 8), (1.0, 2.0, 4.0, 8.0))
BENT = ScalingCurve((1, 2, 4, 8), (1.0, 1.8, 2.4, 2.0))  # 8 GPUs are slower than 4
NOW_S = 14_400.0  # a multiple of every lease


def job(job_id: str, deadline_s: float | None = None, **changes: Any) -> BaselineJob:
    """100 iterations at 1 iteration/s on one GPU, submitted now, due deadline_s from now if at all."""
    base = BaselineJob(
        job_id=job_id,
        submitted_at_s=NOW_S,
        deadline_s=None if deadline_s is None else NOW_S + deadline_s,
        job_class=JobClass.BEST_EFFORT if deadline_s is None else JobClass.SLO,
        curve=LINEAR,
        remaining_iterations=100.0,
        num_iterations=100.0,
        requested_num_gpus=1,
        held_since_s=NOW_S,
    )
    return replace(base, **changes)


def running(job_id: str, num_gpus: int, **changes: Any) -> BaselineJob:
    """One that was submitted long ago and holds GPUs for a while."""
    held = {"requested_num_gpus": num_gpus, "submitted_at_s": NOW_S - 7200.0, "held_since_s": NOW_S - 3600.0}
    return job(job_id, current_num_gpus=num_gpus, **held | changes)


def shares(baseline: Baseline, *jobs: BaselineJob, num_gpus: int = 8, at_s: float = 0.0) -> dict[str, int]:
    return dict(baseline.shares(jobs, num_gpus, NOW_S + at_s).num_gpus_by_job)


# --- what all share -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("requested", "gang"), [(1, 2), (2, 2), (3, 2), (6, 4), (64, 4)])
def test_a_gang_is_what_was_requested_as_far_as_job_and_pool_can(requested: int, gang: int) -> None:
    curve = ScalingCurve((2, 4), (1.0, 0.5))  # slower on more: a rigid user gets it all the same
    assert job("a", curve=curve, requested_num_gpus=requested).gang == gang


def test_every_baseline_is_listed_by_its_name() -> None:
    assert len(BASELINES) == 19
    assert all(baseline.name == name for name, baseline in BASELINES.items())


# --- earliest deadline first ----------------------------------------------------------------------------


def test_edf_gives_the_earliest_deadline_its_fastest_level() -> None:
    early, late = job("early", 50.0, curve=BENT), job("late", 90.0)
    assert shares(EarliestDeadlineFirst(), late, early) == {"early": 4, "late": 4}


def test_edf_serves_a_deadline_that_has_passed_and_best_effort_last() -> None:
    hopeless, easy, free = job("hopeless", -10.0), job("easy", 900.0), job("free")
    assert shares(EarliestDeadlineFirst(), free, easy, hopeless) == {"hopeless": 8}
    assert shares(EarliestDeadlineFirst(), free, easy, num_gpus=15) == {"easy": 8, "free": 4}


def test_edf_of_the_published_program_goes_up_to_64_gpus_even_where_that_is_slower() -> None:
    curve = ScalingCurve((1, 2, 32, 64, 128), (1.0, 1.8, 9.0, 8.0, 12.0))
    policy = EarliestDeadlineFirst("edf-64", most_gpus=64)
    assert shares(policy, job("a", 50.0, curve=curve), num_gpus=128) == {"a": 64}
    assert shares(policy, job("a", 50.0, curve=curve), num_gpus=63) == {"a": 32}
    assert shares(EarliestDeadlineFirst(), job("a", 50.0, curve=curve), num_gpus=64) == {"a": 32}


def test_edf_admission_plans_with_the_most_gpus_that_it_gives() -> None:
    due = job("due", 45.0, curve=BENT)  # 41.7 s on 4 GPUs, 50 s on 8
    assert EarliestDeadlineFirstWithAdmission().admits(due, [], 8, NOW_S)
    assert not EarliestDeadlineFirstWithAdmission(most_gpus=64).admits(due, [], 8, NOW_S)


def test_edf_puts_soft_deadlines_after_hard_ones() -> None:
    soft = job("soft", 10.0, job_class=JobClass.SOFT)
    assert shares(EarliestDeadlineFirst(), soft, job("hard", 500.0)) == {"hard": 8}


def test_edf_admission_admits_a_job_that_makes_no_job_late() -> None:
    policy = EarliestDeadlineFirstWithAdmission()
    first = job("first", 20.0)  # 12.5 s on 8 GPUs
    assert policy.admits(job("second", 25.0), [first], 8, NOW_S)
    assert not policy.admits(job("second", 24.9), [first], 8, NOW_S)
    assert not policy.admits(job("urgent", 12.5), [first], 8, NOW_S)  # first would end at 25 s
    assert policy.admits(job("urgent", 12.5), [replace(first, deadline_s=NOW_S + 25.0)], 8, NOW_S)


def test_edf_admission_charges_the_resizes_that_it_plans() -> None:
    policy = EarliestDeadlineFirstWithAdmission()
    cost = ResizeCost.flat(5.0)
    assert not policy.admits(job("a", 17.4, resize_cost=cost), [], 8, NOW_S)
    assert policy.admits(job("a", 17.5, resize_cost=cost), [], 8, NOW_S)
    holding = job("a", 17.4, resize_cost=cost, current_num_gpus=8, held_since_s=NOW_S - 100.0)
    assert policy.admits(job("b", 40.0, resize_cost=cost), [holding], 8, NOW_S)


def test_edf_admission_rejects_no_job_for_a_deadline_that_is_missed_anyway() -> None:
    policy = EarliestDeadlineFirstWithAdmission()
    lost = job("lost", -5.0)
    assert policy.admits(job("later", 100.0), [lost], 8, NOW_S)
    assert not policy.admits(job("later", 13.0), [lost], 8, NOW_S)
    assert policy.admits(job("best-effort"), [lost], 8, NOW_S)


def test_edf_elastic_gives_each_deadline_its_fewest_gpus_first() -> None:
    tight, wide = job("tight", 25.0), job("wide", 50.0)
    assert shares(EarliestDeadlineFirstElastic(), tight, wide, num_gpus=6) == {"tight": 4, "wide": 2}
    assert shares(EarliestDeadlineFirstElastic(), tight, job("loose", 100.0), num_gpus=7) == {
        "tight": 4,
        "loose": 2,  # one is enough, another is idle
    }


def test_edf_elastic_lets_a_deadline_wait_that_can_be_met_later_and_says_when() -> None:
    tight, later = job("tight", 12.5), job("later", 40.0)
    answer = EarliestDeadlineFirstElastic().shares((tight, later), 8, NOW_S)
    assert answer.num_gpus_by_job == {"tight": 8}
    assert answer.valid_until_s == NOW_S + 12.5


def test_edf_elastic_serves_late_jobs_after_all_others() -> None:
    hopeless, fine = job("hopeless", 5.0), job("fine", 12.5)
    assert shares(EarliestDeadlineFirstElastic(), hopeless, fine) == {"fine": 8}
    assert shares(EarliestDeadlineFirstElastic(), hopeless, job("fine", 25.0)) == {"fine": 4, "hopeless": 4}


def test_edf_elastic_resizes_no_job_for_less_than_the_resize_costs() -> None:
    almost_done = running("a", 4, deadline_s=NOW_S + 100.0, job_class=JobClass.SLO, remaining_iterations=8.0)
    dear = replace(almost_done, resize_cost=ResizeCost.flat(30.0))
    assert shares(EarliestDeadlineFirstElastic(), almost_done) == {"a": 8}
    assert shares(EarliestDeadlineFirstElastic(), dear) == {"a": 4}


# --- rigid gangs ----------------------------------------------------------------------------------------


def test_gandiva_lets_gangs_take_turns_and_the_longest_waiting_goes_first() -> None:
    long, short = running("long", 4), running("short", 4, held_since_s=NOW_S - 400.0)
    waiting = job("waiting", requested_num_gpus=4, held_since_s=NOW_S - 500.0)
    newer = job("newer", requested_num_gpus=4, held_since_s=NOW_S - 100.0)
    turn = Gandiva().shares((long, short, waiting, newer), 12, NOW_S)
    assert turn.num_gpus_by_job == {"waiting": 4, "newer": 4, "short": 4}
    assert turn.valid_until_s == NOW_S + 300.0


def test_gandiva_preempts_no_job_within_a_slice_or_while_gpus_are_free() -> None:
    holder, waiting = running("holder", 8), job("waiting", requested_num_gpus=4)
    assert shares(Gandiva(), holder, waiting, at_s=100.0) == {"holder": 8}
    alone = Gandiva().shares((holder, waiting), 12, NOW_S)
    assert alone.num_gpus_by_job == {"holder": 8, "waiting": 4}
    assert alone.valid_until_s == math.inf


def test_a_lease_that_has_just_begun_does_not_end_in_the_same_second() -> None:
    started = running("started", 8, held_since_s=NOW_S)
    preempted = job("preempted", requested_num_gpus=8)
    for policy in (Gandiva(), Themis(), Chronus()):
        assert shares(policy, preempted, started, at_s=0.5) == {"started": 8}, policy.name


def test_tiresias_serves_the_least_attained_queue_first_and_by_arrival_within_a_queue() -> None:
    young = job("young", requested_num_gpus=8)
    middle = running("middle", 8, attained_gpu_seconds=10_000.0)
    assert shares(Tiresias(), middle, young) == {"young": 8}
    within = running("middle", 8, attained_gpu_seconds=9_999.0)
    assert shares(Tiresias(), within, young) == {"middle": 8}


def test_tiresias_decides_again_when_a_job_sinks_while_another_waits() -> None:
    sinking = running("sinking", 8, attained_gpu_seconds=9_200.0)
    waiting = job("waiting", requested_num_gpus=8)
    assert Tiresias().shares((sinking, waiting), 8, NOW_S).valid_until_s == NOW_S + 100.0
    assert Tiresias().shares((sinking,), 8, NOW_S).valid_until_s == math.inf


def test_tiresias_promotes_a_job_that_waits_too_long() -> None:
    starved = job(
        "starved",
        requested_num_gpus=8,
        attained_gpu_seconds=16_000.0,  # 2000 s on 8 GPUs
        submitted_at_s=NOW_S - 99_999.0,
        held_since_s=NOW_S - 16_000.0,
    )
    young = job("young", requested_num_gpus=8)
    assert shares(Tiresias(), starved, young) == {"starved": 8}
    assert shares(Tiresias(), replace(starved, held_since_s=NOW_S - 15_999.0), young) == {"young": 8}


def test_tiresias_counts_the_service_of_a_promoted_job_from_its_promotion() -> None:
    promotion = Wait(waited_s=16_000.0, attained_gpu_seconds=16_000.0)  # it had run for 2000 s on 8 GPUs
    first = Wait(waited_s=9_999.0, attained_gpu_seconds=0.0)  # a first start is no promotion
    again = running("again", 8, attained_gpu_seconds=25_999.0, waits=(first, promotion))
    young = job("young", requested_num_gpus=8)
    assert shares(Tiresias(), again, young) == {"again": 8}
    assert shares(Tiresias(), replace(again, attained_gpu_seconds=26_000.0), young) == {"young": 8}
    assert shares(Tiresias(), replace(again, waits=(first,)), young) == {"young": 8}
    assert shares(Tiresias(), replace(again, waits=(replace(promotion, waited_s=15_999.0),)), young) == {"young": 8}


def test_tiresias_looks_again_when_a_job_that_it_promotes_now_would_sink() -> None:
    starved = job("starved", requested_num_gpus=8, attained_gpu_seconds=16_000.0, held_since_s=NOW_S - 16_000.0)
    answer = Tiresias().shares((starved, job("young", requested_num_gpus=8)), 8, NOW_S)
    assert (answer.num_gpus_by_job, answer.valid_until_s) == ({"starved": 8}, NOW_S + 10_000.0 / 8)


def test_elastic_tiresias_halves_all_but_the_first_queue_while_others_wait() -> None:
    old = running("old", 8, attained_gpu_seconds=20_000.0)
    young = job("young", requested_num_gpus=4)
    assert shares(ElasticTiresias(), old, young) == {"young": 4, "old": 4}
    assert shares(ElasticTiresias(max_pending=1), old, young) == {"young": 4}


def test_elastic_tiresias_grows_by_greatest_gain_while_no_job_waits() -> None:
    bent = job("bent", curve=BENT, requested_num_gpus=1)
    straight = job("straight", requested_num_gpus=1)
    assert shares(ElasticTiresias(), bent, straight, num_gpus=4) == {"bent": 2, "straight": 2}
    assert shares(ElasticTiresias(), bent, straight, num_gpus=6) == {"bent": 2, "straight": 4}
    assert shares(ElasticTiresias(), bent, num_gpus=8) == {"bent": 4}


def test_themis_gives_the_next_lease_to_the_job_that_sharing_delays_most() -> None:
    delayed = job("delayed", submitted_at_s=NOW_S - 900.0, requested_num_gpus=8)
    favoured = running("favoured", 8, submitted_at_s=NOW_S - 100.0, num_iterations=1_000.0)
    assert finish_time_fairness(delayed, 2, 8, NOW_S) == pytest.approx((900.0 + 12.5) / 25.0)
    assert shares(Themis(), favoured, delayed) == {"delayed": 8}
    assert shares(Themis(), favoured, delayed, at_s=10.0) == {"favoured": 8}  # the lease still runs


def test_themis_in_slots_divides_the_time_so_that_the_greatest_delay_is_least() -> None:
    """Both jobs need all GPUs; the long one has waited for 100 s, and rho is equal where it can be."""
    long = job("long", requested_num_gpus=8, remaining_iterations=800.0, num_iterations=800.0)
    waited = job("waited", requested_num_gpus=8, remaining_iterations=800.0, num_iterations=800.0)
    assert fair_time_shares((long, waited), 8, NOW_S) == {"long": pytest.approx(0.5), "waited": pytest.approx(0.5)}
    waited = replace(waited, submitted_at_s=NOW_S - 100.0)
    found = fair_time_shares((long, waited), 8, NOW_S)
    assert sum(found.values()) == pytest.approx(1.0)
    rhos = [(now_s + 100.0 / found[name]) / 200.0 for name, now_s in (("long", 0.0), ("waited", 100.0))]
    assert rhos[0] == pytest.approx(rhos[1])
    assert fair_time_shares((long,), 8, NOW_S) == {"long": pytest.approx(1.0)}
    assert fair_time_shares((), 8, NOW_S) == {}


def test_themis_in_slots_runs_the_largest_share_and_changes_gangs_where_a_slot_begins() -> None:
    policy = ThemisInSlots("themis-slots-60", slot_s=60.0)
    delayed = job("delayed", submitted_at_s=NOW_S - 900.0, requested_num_gpus=8)
    favoured = running("favoured", 8, submitted_at_s=NOW_S - 100.0, num_iterations=1_000.0)
    assert shares(policy, favoured, delayed) == {"delayed": 8}
    in_a_slot = policy.shares((favoured, delayed), 8, NOW_S + 10.0)
    assert (in_a_slot.num_gpus_by_job, in_a_slot.valid_until_s) == ({"favoured": 8}, NOW_S + 60.0)
    assert policy.shares((favoured,), 8, NOW_S).valid_until_s == math.inf


def test_chronus_packs_leases_before_deadlines_and_gives_up_the_largest() -> None:
    large = job("large", 480.0, remaining_iterations=8 * 480.0, requested_num_gpus=8)
    small = job("small", 500.0, remaining_iterations=8 * 240.0, requested_num_gpus=8)
    assert shares(Chronus(), large) == {"large": 8}
    assert shares(Chronus(), large, small) == {"small": 8}
    patient = replace(small, deadline_s=NOW_S + 720.0)
    assert shares(Chronus(), large, patient) == {"large": 8}


def test_chronus_of_the_published_program_starts_jobs_at_ticks_only() -> None:
    policy = Chronus(slack=0.1, waits_for_ticks=True)
    holder, waiting = running("holder", 4), job("waiting", 480.0, requested_num_gpus=4)
    answer = policy.shares((holder, waiting), 8, NOW_S + 100.0)
    assert (answer.num_gpus_by_job, answer.valid_until_s) == ({"holder": 4}, NOW_S + 240.0)
    assert policy.shares((holder,), 8, NOW_S + 100.0).valid_until_s == math.inf
    assert shares(policy, holder, waiting) == {"holder": 4, "waiting": 4}


def test_chronus_with_slack_gives_up_a_deadline_that_leaves_less() -> None:
    tight = job("tight", 109.9, remaining_iterations=800.0, requested_num_gpus=8)
    short = job("short", remaining_iterations=8.0, requested_num_gpus=8)
    assert shares(Chronus(slack=0.1), tight, short) == {"short": 8}
    assert shares(Chronus(slack=0.1), replace(tight, deadline_s=NOW_S + 110.1), short) == {"tight": 8}
    assert shares(Chronus(), tight, short) == {"tight": 8}


def test_chronus_runs_late_and_best_effort_jobs_on_the_rest_shortest_first() -> None:
    kept = job("kept", 300.0, remaining_iterations=1_000.0, requested_num_gpus=4)
    lost = job("lost", 10.0, remaining_iterations=2_000.0, requested_num_gpus=4)
    short = job("short", remaining_iterations=500.0, requested_num_gpus=4)
    assert shares(Chronus(), lost, short, kept) == {"kept": 4, "short": 4}


# --- elastic, blind to deadlines ------------------------------------------------------------------------


def test_pollux_raises_the_harmonic_mean_of_speedups() -> None:
    bent, straight = job("bent", curve=BENT), job("straight")
    assert shares(Pollux(), bent, straight, num_gpus=6) == {"bent": 2, "straight": 4}
    crowd = [job(f"job-{number}") for number in range(8)]
    assert shares(Pollux(), *crowd) == {f"job-{number}": 1 for number in range(8)}


def test_pollux_moves_a_young_job_for_less_than_it_costs_only_when_it_is_older() -> None:
    young = running("a", 4, submitted_at_s=NOW_S - 60.0, resize_cost=ResizeCost.flat(60.0), num_resizes=1)
    answer = Pollux().shares((young,), 8, NOW_S)
    assert (answer.num_gpus_by_job, answer.valid_until_s) == ({"a": 4}, NOW_S + 60.0)
    older = replace(young, submitted_at_s=NOW_S - 7200.0)
    answer = Pollux().shares((older,), 8, NOW_S)
    assert (answer.num_gpus_by_job, answer.valid_until_s) == ({"a": 8}, math.inf)


def test_pollux_changes_shares_at_its_intervals_and_only_starts_jobs_between() -> None:
    assert shares(Pollux(), running("a", 2), job("b"), at_s=30.0) == {"a": 2, "b": 1}


def test_weighted_fair_sharing_follows_the_weights_up_to_what_was_requested() -> None:
    heavy = running("heavy", 1, weight=4.0, requested_num_gpus=8)
    light = running("light", 1, weight=1.0, requested_num_gpus=8)
    assert shares(WeightedFairSharing(), light, heavy, num_gpus=5) == {"heavy": 4, "light": 1}
    modest = replace(heavy, requested_num_gpus=2)
    assert shares(WeightedFairSharing(), light, modest, num_gpus=6) == {"heavy": 2, "light": 4}


def test_weighted_fair_sharing_shrinks_equal_jobs_for_an_arriving_one_but_none_above_it() -> None:
    holder = running("holder", 8, weight=5.0)
    equal = job("equal", weight=5.0, requested_num_gpus=8)
    assert shares(WeightedFairSharing(), holder, equal) == {"holder": 4, "equal": 4}
    below = replace(equal, job_id="below", weight=1.0)
    assert shares(WeightedFairSharing(), holder, below) == {"holder": 8}


def test_static_priority_starts_by_weight_and_takes_nothing_back() -> None:
    holder = running("holder", 4, weight=1.0)
    high, low = (
        job("high", weight=10.0, requested_num_gpus=8),
        job("low", weight=1.0, requested_num_gpus=4),
    )
    assert shares(StaticPriority(), holder, low, high) == {"holder": 4, "low": 4}
    assert shares(StaticPriority(), low, high) == {"high": 8}
