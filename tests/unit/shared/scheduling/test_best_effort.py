"""Fair shares of tenants and jobs, and the place of one job in each rule."""

import math
from dataclasses import replace

import pytest

from elasticflow.shared.scheduling.allocation.best_effort import (
    BestEffortJob,
    BestEffortQueue,
    Claim,
    Rank,
    Turn,
    WaitingLimits,
    fair_shares,
    turn_by_rule,
)

LIMITS = WaitingLimits(wait_factor=3.0, run_factor=20.0)
JOB = BestEffortJob(
    row=0,
    job_id="a",
    tenant="lab",
    admitted_at_s=0.0,
    length_s=100.0,
    remaining_s=100.0,
    levels=(1, 2, 4),
    held=0,
    placed_at_s=0.0,
    stop_s=4.0,
    speedup=1.0,
    weight=1.0,
    has_minimum=False,
)


def claim(name: str, tenant: str = "lab", weight: float = 1.0, levels: tuple[int, ...] = (1, 2, 4, 8)) -> Claim:
    return Claim(name=name, tenant=tenant, weight=weight, levels=levels, order=(name,))


def place(rule: str, now_s: float, **changes: object) -> Turn:
    return turn_by_rule(rule, JOB._replace(**changes), LIMITS, now_s)


# --- fair shares ---------------------------------------------------------------------------------------


def test_jobs_of_one_tenant_share_by_weight() -> None:
    assert fair_shares([claim("a"), claim("b")], 8) == {"a": 4, "b": 4}
    assert fair_shares([claim("a", weight=3.0), claim("b")], 5) == {"a": 4, "b": 1}
    assert fair_shares([claim("a", weight=5.0), claim("b")], 2) == {"a": 1, "b": 1}  # each begins with its fewest


def test_a_tenant_gains_nothing_by_more_jobs() -> None:
    many = [claim(f"many-{number}", "many") for number in range(20)]
    shares = fair_shares([*many, claim("one", "one")], 8)
    assert shares.pop("one") == 4
    assert shares == {"many-0": 1, "many-1": 1, "many-10": 1, "many-11": 1}


def test_tenants_share_by_their_weights() -> None:
    claims = [claim(f"{tenant}-{number}", tenant, levels=(1,)) for tenant in "ab" for number in range(8)]
    shares = fair_shares(claims, 8, {"a": 3.0})
    assert [sum(name.startswith(tenant) for name in shares) for tenant in "ab"] == [6, 2]


def test_what_a_tenant_cannot_use_goes_to_the_others() -> None:
    assert fair_shares([claim("a", "a", levels=(1,)), claim("b", "b")], 8) == {"a": 1, "b": 4}
    assert fair_shares([claim("a", "a", levels=(1,)), claim("b", "b"), claim("c", "b")], 8) == {"a": 1, "b": 4, "c": 2}


def test_a_step_that_does_not_fit_is_passed_over() -> None:
    assert fair_shares([claim("a", levels=(4,)), claim("b")], 3) == {"b": 2}
    assert fair_shares([claim("a")], 0) == {}


def test_gpus_that_a_tenant_has_already_count() -> None:
    has = replace(claim("kept", "a"), taken=4)
    assert fair_shares([has, claim("a", "a"), claim("b", "b")], 4) == {"b": 4}


# --- shortest first ------------------------------------------------------------------------------------


def test_the_shortest_remaining_job_is_first() -> None:
    long, short = place("shortest-first", 10.0), place("shortest-first", 10.0, job_id="b", remaining_s=60.0)
    assert short.place < long.place


def test_a_job_of_twice_the_priority_may_be_twice_as_long() -> None:
    longer = place("shortest-first", 0.0, job_id="b", remaining_s=199.0, weight=2.0)
    assert longer.place < place("shortest-first", 0.0).place
    longer = place("shortest-first", 0.0, job_id="b", remaining_s=201.0, weight=2.0)
    assert longer.place > place("shortest-first", 0.0).place


def test_a_job_that_waited_three_times_its_length_is_overdue() -> None:
    waits = place("shortest-first", 299.0)
    assert (waits.place[0], waits.waits_until_s) == (Rank.IN_ORDER, 300.0)
    overdue, short = place("shortest-first", 300.0), place("shortest-first", 300.0, job_id="b", admitted_at_s=299.0)
    assert overdue.place[0] == Rank.OVERDUE
    assert overdue.place < short.place


def test_work_that_is_done_counts_as_no_wait() -> None:
    turn = place("shortest-first", 340.0, remaining_s=40.0)
    assert (turn.place[0], turn.waits_until_s) == (Rank.IN_ORDER, 360.0)


def test_a_running_job_keeps_its_gpus_for_twenty_stops() -> None:
    runs = place("shortest-first", 183.9, held=1, placed_at_s=100.0)
    assert runs.runs_until_s == 184.0
    short = place("shortest-first", 183.9, job_id="b", admitted_at_s=150.0, remaining_s=10.0)
    assert runs.place < short.place < runs.settled
    assert place("shortest-first", 184.0, held=1, placed_at_s=100.0).place > short.place


def test_a_running_job_counts_as_shorter_by_one_stop() -> None:
    runs = place("shortest-first", 200.0, held=1, placed_at_s=100.0, remaining_s=50.0)
    assert runs.place < place("shortest-first", 200.0, job_id="b", admitted_at_s=200.0, remaining_s=47.0).place
    assert runs.place > place("shortest-first", 200.0, job_id="b", admitted_at_s=200.0, remaining_s=45.0).place


def test_an_overdue_job_stops_one_that_keeps_its_gpus_only_if_it_needs_several() -> None:
    keeps = place("shortest-first", 350.0, job_id="b", admitted_at_s=340.0, held=1, placed_at_s=340.0)
    assert place("shortest-first", 350.0).place > keeps.place
    assert place("shortest-first", 350.0, levels=(2, 4)).place < keeps.place


# --- elastic tiresias ----------------------------------------------------------------------------------


def test_jobs_sink_as_they_use_gpus_and_are_served_in_order_of_arrival() -> None:
    late = place("elastic-tiresias", 20_000.0, job_id="late", admitted_at_s=19_000.0)
    early = place("elastic-tiresias", 20_000.0, job_id="early", admitted_at_s=18_000.0, length_s=1e6, remaining_s=1e6)
    sunk = place("elastic-tiresias", 20_000.0, length_s=20_000.0, remaining_s=9_999.0)
    assert early.place < late.place < sunk.place
    assert sunk.place[1] == 1


def test_a_job_sinks_when_it_has_used_the_quantum() -> None:
    runs = place(
        "elastic-tiresias", 9_000.0, length_s=20_000.0, remaining_s=12_000.0, levels=(2, 4), held=4, speedup=2.0
    )
    assert runs.place[1] == 1  # 16,000 GPU-seconds
    assert runs.runs_until_s == pytest.approx(9_000.0 + (100_000.0 - 8_000.0) / 2.0)
    runs = place("elastic-tiresias", 9_000.0, length_s=20_000.0, remaining_s=17_000.0, levels=(2, 4), held=4, speedup=2)
    assert runs.runs_until_s == pytest.approx(9_000.0 + 2_000.0 / 2.0)


def test_a_job_that_waited_eight_times_its_run_is_promoted() -> None:
    waits = place("elastic-tiresias", 89_999.0, length_s=30_000.0, remaining_s=20_000.0)
    assert (waits.place[:2], waits.waits_until_s) == ((Rank.IN_ORDER, 1), 90_000.0)
    assert place("elastic-tiresias", 90_000.0, length_s=30_000.0, remaining_s=20_000.0).place[0] == Rank.OVERDUE


# --- fair ----------------------------------------------------------------------------------------------


def test_in_a_tenant_overdue_jobs_are_first_then_running_ones_then_the_greatest_priority() -> None:
    overdue = place("fair", 500.0)
    runs = place("fair", 500.0, job_id="b", admitted_at_s=410.0, held=1, placed_at_s=410.0)
    preferred = place("fair", 500.0, job_id="c", admitted_at_s=450.0, weight=2.0)
    early, late = (place("fair", 500.0, job_id="d", admitted_at_s=at_s) for at_s in (440.0, 450.0))
    assert overdue.place < runs.place < preferred.place < early.place < late.place
    keeps = place("fair", 500.0, job_id="b", admitted_at_s=450.0, held=1, placed_at_s=450.0)
    assert keeps.place < overdue.place < keeps.settled


# --- queue ---------------------------------------------------------------------------------------------


def test_the_order_is_looked_at_again_when_a_waiting_job_may_get_gpus() -> None:
    runs = place("shortest-first", 110.0, job_id="long", held=1, placed_at_s=100.0, remaining_s=90.0)
    short = place("shortest-first", 110.0, admitted_at_s=105.0, job_id="short", length_s=50.0, remaining_s=50.0)
    queue = BestEffortQueue(turns=(runs, short), padding_turns=())
    assert queue.next_change_s({"long": 1}, 110.0) == 184.0  # the long one has paid for its start
    assert queue.next_change_s({"long": 1, "short": 1}, 110.0) == math.inf  # none waits
    longer = short._replace(settled=(Rank.IN_ORDER, 95.0, "short"))
    queue = BestEffortQueue(turns=(runs, longer), padding_turns=())
    assert queue.next_change_s({"long": 1}, 110.0) == 255.0  # it is overdue then
