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
from elasticflow.shared.scheduling.availability.availability_profile import (
    AvailabilityProfile,
    Schedules,
    empty_availability_profile,
)
from elasticflow.shared.scheduling.compiled_loops import Flags, Floats, Integers
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.state.pool import num_gpus_in_gangs


class _Segments(NamedTuple):
    start_S: Floats
    end_S: Floats
    num_gpus_S: Integers
    is_pinned_S: Flags
    gang_S: Integers  # the GPUs of a replica

    def only(self, some_S: Flags) -> "_Segments":
        start_S, end_S, num_gpus_S, is_pinned_S, gang_S = self
        return _Segments(start_S[some_S], end_S[some_S], num_gpus_S[some_S], is_pinned_S[some_S], gang_S[some_S])


def packs(plan: AdmissionPlan, proposal: Proposal) -> bool:
    """Whether all jobs have blocks under the schedules of the plan with the proposed promise.

    A promised job is pinned if it may never migrate.
    """
    together = _segments_with(plan, proposal)
    if not together.is_pinned_S.any():
        return True
    sizes = (1 << exponent for exponent in range(1, int(together.num_gpus_S.max(initial=1)).bit_length()))
    return all(_has_blocks(plan, together, size, together.num_gpus_S >= size) for size in sizes)


def gangs_fit(plan: AdmissionPlan, proposal: Proposal | None = None) -> bool:
    """Whether each replica of several GPUs has a whole block of a node under the schedules of the plan, with the
    proposed promise if there is one. Nothing is asked where no job has such replicas."""
    own = proposal.job.gpus_per_replica if proposal is not None else 1
    sizes = sorted({*plan.gangs.values(), own} - {1})
    if not sizes:
        return True
    together = _segments_with(plan, proposal)
    return all(_has_blocks(plan, together, size, together.gang_S == size) for size in sizes)


def free_for_gangs(plan: AdmissionPlan, size: int) -> AvailabilityProfile:
    """The GPUs that a job with so many for each replica may have from each instant on, beside the plan."""
    others = _segments_with(plan, None)
    start_B, free_B = plan.availability.start_B, plan.availability.free_B[: plan.availability.size[0]]
    start_B = start_B[: len(free_B)]
    ends_s, drops_s = others.end_S[np.isfinite(others.end_S)], [drop.at_s for drop in plan.drops]
    at_T: Floats = np.unique(np.concatenate((start_B, others.start_S, ends_s, drops_s)))
    at_T = np.append(plan.now_s, at_T[at_T > plan.now_s])
    free_T: Integers = free_B[np.searchsorted(start_B, at_T, side="right") - 1]
    free_T = np.maximum(np.minimum(free_T, _free_in_blocks(plan, others, size, at_T)), 0)
    profile = empty_availability_profile(len(plan.availability.start_B) + len(at_T))
    profile.start_B[: len(at_T)], profile.free_B[: len(at_T)], profile.size[0] = at_T, free_T, len(at_T)
    return profile


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


def _segments_with(plan: AdmissionPlan, proposal: Proposal | None) -> _Segments:
    """All segments of the plan with a proposed promise. A job is pinned if it may never migrate."""
    table = plan.table
    is_pinned_J: Flags = table.jobs.migration_budget_J[: table.num_jobs] == 0.0
    gang_J: Integers = np.ones(table.num_jobs, np.int64)
    gang_J[list(plan.gangs)] = list(plan.gangs.values())
    rows: Integers = np.setdiff1d(plan.scheduled, plan.gone)
    if proposal is None:
        return _segments(table.schedules, rows, is_pinned_J[rows], gang_J[rows])
    rows = np.setdiff1d(rows, proposal.rows)
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


def _has_blocks(plan: AdmissionPlan, segments: _Segments, size: int, asks_S: Flags) -> bool:
    """Whether the blocks of `size` GPUs suffice whenever one of the jobs that ask for them holds GPUs.

    Fewer are free only from a start, or a node's end, on.
    """
    counted_S = (segments.num_gpus_S >= size) | segments.is_pinned_S
    segments, asks_S = segments.only(counted_S), asks_S[counted_S]
    starts_s: Floats = np.maximum(segments.start_S, plan.now_s)
    at_T: Floats = np.unique(np.concatenate((starts_s, [drop.at_s for drop in plan.drops])))
    asking_T = _held(plan, segments, asks_S.astype(np.int64), at_T)
    gangs_ask = bool((asks_S & (segments.gang_S == size)).any())
    free_T = _free_in_blocks(plan, segments, size, at_T) if gangs_ask else _free_anywhere(plan, segments, size, at_T)
    return not bool(((asking_T > 0) & (free_T < 0)).any())


def _free_in_blocks(plan: AdmissionPlan, segments: _Segments, size: int, at_T: Floats) -> Integers:
    """GPUs in whole blocks of nodes that are left at these instants, below 0 if some are missing.

    Jobs that may migrate may be in other blocks, of several nodes.
    """
    in_nodes_T = (_num_gpus_in_gangs(plan, size) - _lost(plan, at_T)) // size * size
    pinned_T = _held(plan, segments, np.maximum(segments.num_gpus_S, size) * segments.is_pinned_S, at_T)
    return np.minimum(_free_anywhere(plan, segments, size, at_T), in_nodes_T - pinned_T)


def _free_anywhere(plan: AdmissionPlan, segments: _Segments, size: int, at_T: Floats) -> Integers:
    """The same in blocks of any nodes."""
    counted_S = (segments.num_gpus_S >= size) | segments.is_pinned_S
    there_T = (plan.num_gpus - _lost(plan, at_T)) // size * size
    return there_T - _held(plan, segments, np.maximum(segments.num_gpus_S, size) * counted_S, at_T)


def _lost(plan: AdmissionPlan, at_T: Floats) -> Integers:
    """GPUs of nodes that have left by then."""
    drops = plan.drops
    return _added_up(np.array([d.at_s for d in drops]), np.array([d.num_gpus for d in drops], np.int64), at_T)


def _held(plan: AdmissionPlan, segments: _Segments, amount_S: Integers, at_T: Floats) -> Integers:
    """The sum of these amounts over the segments at each instant."""
    starts = _added_up(np.maximum(segments.start_S, plan.now_s), amount_S, at_T)
    return starts - _added_up(segments.end_S, amount_S, at_T)


def _added_up(since_S: Floats, amount_S: Integers, at_T: Floats) -> Integers:
    """The sum of the amounts that have come by then."""
    order_S = np.argsort(since_S, kind="stable")
    sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(amount_S[order_S])))
    return sums[np.searchsorted(since_S[order_S], at_T, side="right")]
