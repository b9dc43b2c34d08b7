"""Whether all promised jobs of a plan have whole buddy blocks at each instant, although some may not migrate.

Without such pinned jobs, powers of two that fit by number always fit as blocks, largest first (`buddy_blocks`):
placement migrates jobs until they do. A pinned job may lie anywhere. It counts as if it filled each larger block that
others need: then enough blocks without pinned jobs are left (docs/adr/0107). Axes: S = segments; T = instants.
"""

from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan, Proposal
from elasticflow.shared.scheduling.availability.availability_profile import Schedules
from elasticflow.shared.scheduling.compiled_loops import Flags, Floats, Integers


class _Segments(NamedTuple):
    start_S: Floats
    end_S: Floats
    num_gpus_S: Integers
    is_pinned_S: Flags


def packs(plan: AdmissionPlan, proposal: Proposal) -> bool:
    """Whether all jobs have blocks under the schedules of the plan with the proposed promise.

    A promised job is pinned if it may never migrate.
    """
    table = plan.table
    is_pinned_J: Flags = table.jobs.migration_budget_J[: table.num_jobs] == 0.0
    rows = np.setdiff1d(np.setdiff1d(plan.scheduled, plan.gone), proposal.rows)
    changed_are_pinned = np.append(is_pinned_J[proposal.rows[:-1]], not proposal.job.migration_budget)
    if not changed_are_pinned.any() and not is_pinned_J[rows].any():
        return True
    kept = _segments(table.schedules, rows, is_pinned_J[rows])
    changed = _segments(proposal.found, np.arange(len(proposal.rows)), changed_are_pinned)
    together = _Segments(
        np.concatenate((kept.start_S, changed.start_S)),
        np.concatenate((kept.end_S, changed.end_S)),
        np.concatenate((kept.num_gpus_S, changed.num_gpus_S)),
        np.concatenate((kept.is_pinned_S, changed.is_pinned_S)),
    )
    sizes = (1 << exponent for exponent in range(1, int(together.num_gpus_S.max(initial=1)).bit_length()))
    return all(_has_blocks(plan, together, size) for size in sizes)


def _segments(schedules: Schedules, rows: Integers, pinned: Flags) -> _Segments:
    count = schedules.count_J[rows]
    row_S = np.repeat(rows, count)
    segment_S = np.arange(len(row_S)) - np.repeat(np.cumsum(count) - count, count)
    at = row_S, segment_S
    return _Segments(schedules.start_JM[at], schedules.end_JM[at], schedules.num_gpus_JM[at], np.repeat(pinned, count))


def _has_blocks(plan: AdmissionPlan, segments: _Segments, size: int) -> bool:
    """Whether the blocks of `size` GPUs suffice whenever a job needs one of them or a larger one."""
    needs_S = segments.num_gpus_S >= size
    counted_S = needs_S | segments.is_pinned_S
    start_S, end_S = np.maximum(segments.start_S[counted_S], plan.now_s), segments.end_S[counted_S]
    used_S = np.maximum(segments.num_gpus_S[counted_S], size)
    at_T = np.concatenate((start_S, end_S, [drop.at_s for drop in plan.drops]))
    order_T = np.lexsort((np.arange(len(at_T)), at_T))
    num_drops = len(plan.drops)
    nothing, lost = np.zeros(num_drops, np.int64), np.array([drop.num_gpus for drop in plan.drops], np.int64)
    used_T = np.cumsum(np.concatenate((used_S, -used_S, nothing))[order_T])
    needing = needs_S[counted_S].astype(np.int64)
    needing_T = np.cumsum(np.concatenate((needing, -needing, nothing))[order_T])
    there_T = plan.num_gpus - np.cumsum(np.concatenate((np.zeros(2 * len(used_S), np.int64), lost))[order_T])
    is_last_T = np.append(np.diff(at_T[order_T]) > 0.0, True)  # of all changes at one instant
    short_T = (needing_T > 0) & (used_T > there_T // size * size)
    return not bool((short_T & is_last_T).any())
