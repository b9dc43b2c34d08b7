"""Whether all promised jobs of a plan have whole buddy blocks at each instant, although some may not migrate.

Without such pinned jobs, powers of two that fit by number always fit as blocks, largest first (`buddy_blocks`):
placement migrates jobs until they do. A pinned job may lie anywhere. It counts as if it filled each larger block that
others need: then enough blocks without pinned jobs are left (docs/adr/0107). Jobs with several GPUs for each replica
need whole blocks of a node, and may not have fragments instead (docs/adr/0055).
Axes: J = rows of the table; S = segments; T = instants.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.admission.admission_plan import AdmissionPlan, Proposal
from elasticflow.shared.scheduling.availability.availability_profile import Schedules
from elasticflow.shared.scheduling.compiled_loops import Flags, Floats, Integers
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.state.pool import num_gpus_in_gangs


class _Segments(NamedTuple):
    start_S: Floats
    end_S: Floats
    num_gpus_S: Integers
    is_pinned_S: Flags
    gang_S: Integers  # the GPUs of a replica


def packs(plan: AdmissionPlan, proposal: Proposal) -> bool:
    """Whether all jobs have blocks under the schedules of the plan with the proposed promise.

    A promised job is pinned if it may never migrate.
    """
    together = _segments_with(plan, proposal)
    if not together.is_pinned_S.any():
        return True
    sizes = (1 << exponent for exponent in range(1, int(together.num_gpus_S.max(initial=1)).bit_length()))
    return all(_has_blocks(plan, together, size, together.num_gpus_S >= size, plan.num_gpus) for size in sizes)


def gangs_fit(plan: AdmissionPlan, proposal: Proposal) -> bool:
    """Whether each replica of several GPUs has a whole block of a node under the schedules of the plan with the
    proposed promise. Nothing is asked where no job has such replicas."""
    sizes = sorted({*plan.gangs.values(), proposal.job.gpus_per_replica} - {1})
    if not sizes:
        return True
    together = _segments_with(plan, proposal)
    return all(
        _has_blocks(plan, together, size, together.gang_S == size, _num_gpus_in_gangs(plan, size)) for size in sizes
    )


def first_with_whole_gangs_s(
    plan: AdmissionPlan, job: SchedulableJob, from_s: float, is_kept: Callable[[SchedulableJob], bool]
) -> float | None:
    """A deadline from this one on at which the job can be promised; the windows grow by a quarter. None if
    none is found.

    Only asked where jobs have replicas of several GPUs: the search before it counts GPUs alone.
    """
    window_s = max(from_s - plan.now_s, 1.0)
    for _ in range(MAX_WINDOWS):
        deadline_s = float(np.ceil(plan.now_s + window_s))
        if is_kept(replace(job, deadline_s=deadline_s)):
            return deadline_s
        window_s *= WIDER
    return None


MAX_WINDOWS = 24  # the last is 170 times the first
WIDER = 1.25


def _num_gpus_in_gangs(plan: AdmissionPlan, size: int) -> int:
    """GPUs that promises can have in whole blocks of this size, each on one node; as if all that are kept back were
    among them."""
    if plan.nodes is None:
        return plan.num_gpus
    there = sum(node.num_gpus for node in plan.nodes.values() if node.takes_jobs)
    return num_gpus_in_gangs(plan.nodes, size) - max(there - plan.num_gpus, 0)


def _segments_with(plan: AdmissionPlan, proposal: Proposal) -> _Segments:
    """All segments of the plan with the proposed promise. A job is pinned if it may never migrate."""
    table = plan.table
    is_pinned_J: Flags = table.jobs.migration_budget_J[: table.num_jobs] == 0.0
    gang_J: Integers = np.ones(table.num_jobs, np.int64)
    gang_J[list(plan.gangs)] = list(plan.gangs.values())
    rows = np.setdiff1d(np.setdiff1d(plan.scheduled, plan.gone), proposal.rows)
    changed_are_pinned = np.append(is_pinned_J[proposal.rows[:-1]], not proposal.job.migration_budget)
    changed_gangs = np.append(gang_J[proposal.rows[:-1]], proposal.job.gpus_per_replica)
    kept = _segments(table.schedules, rows, is_pinned_J[rows], gang_J[rows])
    changed = _segments(proposal.found, np.arange(len(proposal.rows)), changed_are_pinned, changed_gangs)
    return _Segments(
        np.concatenate((kept.start_S, changed.start_S)),
        np.concatenate((kept.end_S, changed.end_S)),
        np.concatenate((kept.num_gpus_S, changed.num_gpus_S)),
        np.concatenate((kept.is_pinned_S, changed.is_pinned_S)),
        np.concatenate((kept.gang_S, changed.gang_S)),
    )


def _segments(schedules: Schedules, rows: Integers, pinned_J: Flags, gang_J: Integers) -> _Segments:
    count = schedules.count_J[rows]
    row_S = np.repeat(rows, count)
    segment_S = np.arange(len(row_S)) - np.repeat(np.cumsum(count) - count, count)
    at = row_S, segment_S
    of_row = np.repeat(pinned_J, count), np.repeat(gang_J, count)
    return _Segments(schedules.start_JM[at], schedules.end_JM[at], schedules.num_gpus_JM[at], *of_row)


def _has_blocks(plan: AdmissionPlan, segments: _Segments, size: int, asks_S: Flags, num_gpus: int) -> bool:
    """Whether the blocks of `size` GPUs suffice whenever one of the jobs that ask for them holds GPUs.

    num_gpus: in such blocks, before nodes leave.
    """
    counted_S = (segments.num_gpus_S >= size) | segments.is_pinned_S
    start_S, end_S = np.maximum(segments.start_S[counted_S], plan.now_s), segments.end_S[counted_S]
    used_S = np.maximum(segments.num_gpus_S[counted_S], size)
    at_T = np.concatenate((start_S, end_S, [drop.at_s for drop in plan.drops]))
    order_T = np.lexsort((np.arange(len(at_T)), at_T))
    num_drops = len(plan.drops)
    nothing, lost = np.zeros(num_drops, np.int64), np.array([drop.num_gpus for drop in plan.drops], np.int64)
    used_T = np.cumsum(np.concatenate((used_S, -used_S, nothing))[order_T])
    needing = asks_S[counted_S].astype(np.int64)
    needing_T = np.cumsum(np.concatenate((needing, -needing, nothing))[order_T])
    there_T = num_gpus - np.cumsum(np.concatenate((np.zeros(2 * len(used_S), np.int64), lost))[order_T])
    is_last_T = np.append(np.diff(at_T[order_T]) > 0.0, True)  # of all changes at one instant
    short_T = (needing_T > 0) & (used_T > there_T // size * size)
    return not bool((short_T & is_last_T).any())
