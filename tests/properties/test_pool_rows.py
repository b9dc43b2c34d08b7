"""Rows that are updated only after changes equal rows that are computed from scratch."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.messages import events
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.scheduling.jobs.live_jobs import OVERDUE_S, LiveJobRows, LiveJobTable
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    held_num_gpus,
    iteration_at,
    known_curve,
    migration_cost,
    migration_cost_of,
    planned_deadline_s,
    progress_rate,
    resize_cost,
    resize_cost_of,
    stalled_until_s,
)
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.job import Phase
from elasticflow.shared.state.pool import PoolState, spec_of
from testbed.histories import spec
from tests.support.history_strategies import JOINED, PROMISED, histories

CURVES = {"linear/b64": {1: 1.0, 2: 2.0, 4: 3.0}}
CONFIG = PoolConfig(curves=CURVES, progress_timeout_s=8.0, reserve_nodes=1)
KNOWN = events.PoolConfigured(config=CONFIG, at_s=0.0)


def rows_of(pool: LiveJobTable) -> dict[str, tuple[Any, ...]]:
    """All that a table says of each job, padding left out."""
    table, found = pool.table, dict[str, tuple[Any, ...]]()
    for row, job_id in enumerate(table.job_ids):
        levels = int(table.jobs.num_levels_J[row])
        by_level = (table.jobs.levels_JL, table.jobs.rates_JL, table.jobs.costs_JL, table.jobs.lost_JL)
        single = (
            table.jobs.remaining_J,
            table.jobs.held_J,
            table.jobs.stalled_until_J,
            table.jobs.deadline_J,
            table.jobs.unsaved_J,
            table.jobs.starts_over_J,
        )
        found[job_id] = (
            *(tuple(array[row, :levels].tolist()) for array in by_level),
            *(array[row].item() for array in single),
            table.schedule(row),
            row in pool.promised,
            pool.listed[row].job_id,
        )
    return found


def assert_describes(pool: LiveJobTable, state: PoolState, now_s: float) -> None:
    """The table says of each job what the pool's state does, one by one."""
    admitted = [job for job in state.live_jobs.values() if job.phase is Phase.ADMITTED]
    known = {job.job_id: job for job in admitted if known_curve(state, spec_of(job)) is not None}
    assert set(pool.table.job_ids) == set(known)
    assert sorted([*pool.promised.tolist(), *pool.others.tolist()]) == list(range(len(known)))
    jobs = pool.table.jobs
    for row, job in enumerate(pool.listed):
        assert job is state.live_jobs[pool.table.job_ids[row]]
        curve = known_curve(state, spec_of(job))
        cost, migration = resize_cost_of(state, spec_of(job)), migration_cost_of(state, spec_of(job))
        assert curve is not None
        count = jobs.num_levels_J[row]
        assert tuple(jobs.levels_JL[row, :count]) == curve.levels
        assert tuple(jobs.rates_JL[row, :count]) == tuple(map(curve.throughput, curve.levels))
        assert tuple(jobs.costs_JL[row, :count]) == tuple(map(cost.seconds, curve.levels))
        assert jobs.held_J[row] == held_num_gpus(job)
        assert jobs.stalled_until_J[row] == stalled_until_s(job, cost, migration)
        assert jobs.starts_over_J[row] == job.starts_over
        assert (jobs.unsaved_J[row] >= job.unsaved_iterations) if job.restarts_to_resize else not jobs.unsaved_J[row]
        left = spec_of(job).max_iterations - iteration_at(job, curve, now_s, state.config.progress_timeout_s)
        overdue = max(1.0, OVERDUE_S * progress_rate(job, curve))
        assert math.isclose(jobs.remaining_J[row], left if left > 0 else overdue, abs_tol=1e-9)
        assert (row in pool.promised) == job.promised
        if job.promised:
            assert jobs.deadline_J[row] == planned_deadline_s(state, job.deadline_s)
            assert [number for segment in pool.table.schedule(row) for number in segment] == list(job.planned_share)
        else:
            assert jobs.deadline_J[row] == math.inf


@given(histories(), st.lists(st.booleans(), min_size=40, max_size=40), st.floats(0.0, 60.0))
def test_after_any_events_the_table_is_the_one_from_scratch(
    messages: tuple[Any, ...], looks: list[bool], ahead_s: float
) -> None:
    state, rows = ledger_fold.evolve(PoolState(), KNOWN, 1), LiveJobRows()
    for number, message in enumerate(messages):
        state = ledger_fold.evolve(state, message, state.sequence + 1)
        if looks[number] or number == len(messages) - 1:
            now_s = number + ahead_s
            kept, anew = rows.table(state, now_s), LiveJobRows().table(state, now_s)
            assert kept.table.job_ids == anew.table.job_ids, "in the same order"
            assert rows_of(kept) == rows_of(anew)
            assert_describes(kept, state, now_s)


@given(histories(max_size=10))
def test_what_a_planner_does_to_its_table_is_not_seen_by_the_next(messages: tuple[Any, ...]) -> None:
    state, rows = ledger_fold.evolve(PoolState(), KNOWN, 1), LiveJobRows()
    for message in messages:
        state = ledger_fold.evolve(state, message, state.sequence + 1)
    before = rows.table(state, 5.0)
    was = rows_of(before)
    for array in (*before.table.jobs, *before.table.schedules):
        array[:] = np.zeros_like(array)
    assert rows_of(rows.table(state, 5.0)) == was


def test_who_waited_for_its_promise_counts_on_failures_from_then_on() -> None:
    """Its speed may be known, and be asked for, before admission has decided."""
    state, rows = ledger_fold.evolve(PoolState(), KNOWN, 1), LiveJobRows()
    asked = events.ProfileRequested(job_id="a", tenant="lab", spec=spec(), deadline_s=100.0, at_s=0.0)
    state = ledger_fold.evolve(state, JOINED, 2)
    for said in (asked, PROMISED):
        decision = events.PlanDecided(service="admission", based_on=state.sequence, now_s=1.0, events=(said,))
        state = ledger_fold.evolve(state, decision, state.sequence + 1)
        kept = rows.table(state, 1.0)
    assert rows_of(kept) == rows_of(LiveJobRows().table(state, 1.0))
    assert kept.table.jobs.lost_JL[0, 0] > 0.0


def test_migrations_cost_a_stop_once_a_node_shows_each_job_its_own_gpus() -> None:
    """Workers that would have to see other GPUs of their node do not switch (docs/adr/0115)."""
    config = replace(CONFIG, stop_free=True, resize_cost_s=10.0)
    state = ledger_fold.evolve(PoolState(), events.PoolConfigured(config=config, at_s=0.0), 1)
    decision = events.PlanDecided(service="admission", based_on=2, now_s=1.0, events=(PROMISED,))
    for message in (JOINED, decision):
        state = ledger_fold.evolve(state, message, state.sequence + 1)
    rows = LiveJobRows()
    rows.table(state, 1.0)
    assert migration_cost(state).seconds(4) < resize_cost(state).seconds(4)
    state = ledger_fold.evolve(state, replace(JOINED, node_id="m", separates_gpus=True), state.sequence + 1)
    assert migration_cost(state) == resize_cost(state)
    assert rows_of(rows.table(state, 1.0)) == rows_of(LiveJobRows().table(state, 1.0))
