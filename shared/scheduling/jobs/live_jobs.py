"""The live jobs of a pool as rows of arrays, updated incrementally.

A row is written again only if its job changed: with a thousand jobs, three of them changed, a decision costs three
rows and one copy.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from operator import attrgetter

import numpy as np

from elasticflow.shared.messages.gpus import ShareSchedule
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.persistent_map import Map
from elasticflow.shared.scheduling.availability.availability_profile import Schedules, empty_schedules
from elasticflow.shared.scheduling.availability.fill import Jobs
from elasticflow.shared.scheduling.compiled_loops import Flags, Integers
from elasticflow.shared.scheduling.jobs.job_table import (
    LONG_AGO_S,
    JobTable,
    copy_rows,
    empty_jobs,
    with_room,
    with_rows,
    write_levels,
    write_schedules,
)
from elasticflow.shared.scheduling.jobs.promised_levels import (
    have_distances,
    joins_s,
    promised_at_s,
    promised_levels,
)
from elasticflow.shared.scheduling.jobs.scaling_curve import Disturbances, ResizeCost, ScalingCurve
from elasticflow.shared.scheduling.jobs.scheduler_view import (
    KnownCurves,
    held_num_gpus,
    known_curve,
    migration_budget,
    migration_cost,
    migration_cost_of,
    planned_deadline_s,
    progress_rate,
    resize_cost,
    resize_cost_of,
    stalled_until_s,
)
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.measured_curve import MeasuredCurve
from elasticflow.shared.state.pool import PoolState, num_draining_gpus, spec_of
from elasticflow.shared.state.topology import Level

_Speeds = tuple[tuple[Level, ...], tuple[float, ...]]  # the levels of promises, and the joins of nodes before them
_SPARE_ROWS = 8  # for arriving jobs
OVERDUE_S = 1.0  # of work that an overdue job is assumed to need
_lasting = attrgetter(  # fields that neither a report of progress nor another schedule changes
    "spec",
    "phase",
    "deadline_s",
    "gpus",
    "reserved_gpus",
    "predicted_speedup",
    "num_added_gpus",
    "started_at_s",
    "placed_at_s",
    "broken",
    "has_outdated_spec",
    "speed",
    "migrated_at_s",
)
_ROUNDING = 1e-12  # of the iterations of a job: less remaining work is rounding


def _tie(name: bytes) -> int:
    """The place of a job among those of the same deadline. Users choose names, and could choose two of one checksum."""
    return zlib.crc32(name) << 31 | int.from_bytes(blake2b(name, digest_size=4).digest()) >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveJobTable:
    """The jobs with a known curve, and their curves, by row; promised and other rows apart.

    gangs: the GPUs of a replica, by row with several.
    """

    table: JobTable
    listed: tuple[Job, ...]
    curves: tuple[ScalingCurve, ...]
    promised: Integers
    others: Integers
    gangs: Mapping[int, int]


class LiveJobRows:
    """A cache for the pure functions: its answers depend on the state and the instant only.

    A job that did not change is the same object in the next state, so that its slot is found by identity.
    """

    def __init__(self, known: KnownCurves | None = None) -> None:
        self._known = KnownCurves() if known is None else known
        self._config: PoolConfig | None = None
        self._of_pool: tuple[int, _Speeds, ResizeCost, ResizeCost, float] | None = None
        self._migration_budget = 0.0
        self._start_costs: Map[str, float] | None = None
        self._forget()

    def table(self, state: PoolState, now_s: float) -> LiveJobTable:
        """The table of all admitted jobs at an instant; the caller owns its arrays."""
        num_gpus, levels = state.num_gpus + num_draining_gpus(state), promised_levels(state)
        speeds = (levels, joins_s(state.nodes))
        of_pool = (num_gpus, speeds, resize_cost(state), migration_cost(state), migration_budget(state))
        is_priced_anew = state.start_costs is not self._start_costs
        if state.config is not self._config or of_pool != self._of_pool or is_priced_anew:
            self._forget()
            self._config, self._of_pool, self._start_costs = state.config, of_pool, state.start_costs
            self._migration_budget = of_pool[-1]
        elif len(self._slots) > 2 * len(state.live_jobs) + 64:
            self._forget()
        if state.curves is not self._all_measured:
            self._forget_measured(state.curves)
        slots = self._slots_of(state)
        slots = slots[self._counts[slots]]
        # the order of the map must not matter
        return self._gather(slots[np.lexsort((self._ties[slots], self._arrays.deadline_J[slots]))], now_s)

    def _slots_of(self, state: PoolState) -> Integers:
        """The slots of all jobs; a changed job is written again, completely or only its progress and schedule."""
        jobs = list(state.live_jobs.values())
        found = [self._slot_of_object.get(id(job)) for job in jobs]
        if None not in found:
            return np.array(found, np.int64)
        slots, replanned, reported = list[int](), list[int](), list[int]()
        for job, slot in zip(jobs, found, strict=True):
            if slot is None:
                slot = self._slots.get(job.job_id)
                if slot is not None and self._lasting[slot] == _lasting(job):
                    self._replace(slot, job)
                    reported.append(slot)
                else:
                    slot = self._write(state, job)
                if job.planned_share is not self._planned[slot]:
                    replanned.append(slot)
            slots.append(slot)
        self._write_progress(reported)
        self._write_schedules(replanned)
        return np.array(slots, np.int64)

    def _write_progress(self, slots: list[int]) -> None:
        rows, jobs = np.array(slots, np.int64), [self._jobs_of[slot] for slot in slots]
        scripts: list[int] = rows[self._restarts[rows]].tolist()
        for slot in scripts:
            self._write_unsaved(slot)
        self._left[rows] = self._iterations[rows] - np.array([job.iteration for job in jobs])
        self._progressed_at[rows] = np.array([job.progressed_at_s for job in jobs])
        reported = [inf if (rate := job.iterations_per_s) is None else rate for job in jobs]
        self._rates[rows] = np.minimum(self._curve_rates[rows], np.array(reported))

    def _write_schedules(self, slots: list[int]) -> None:
        jobs = [self._jobs_of[slot] for slot in slots]
        shares = [job.planned_share if job.promised else () for job in jobs]
        write_schedules(self._schedules, slots, shares)
        for slot, job in zip(slots, jobs, strict=True):
            self._planned[slot] = job.planned_share

    def _write_unsaved(self, slot: int) -> None:
        job = self._jobs_of[slot]
        self._arrays.unsaved_J[slot], self._arrays.starts_over_J[slot] = job.unsaved_iterations, job.starts_over

    def _replace(self, slot: int, job: Job) -> Job:
        """Store the new object of a job in its slot; return the old one."""
        before, self._jobs_of[slot] = self._jobs_of[slot], job
        self._slot_of_object.pop(id(before), None)
        self._slot_of_object[id(job)] = slot
        return before

    def _gather(self, slots: Integers, now_s: float) -> LiveJobTable:
        assert self._config is not None
        num_rows = len(slots)
        num_levels = int(self._arrays.num_levels_J[slots].max(initial=1))
        jobs = empty_jobs(num_rows + _SPARE_ROWS, num_levels)
        schedules = empty_schedules(num_rows + _SPARE_ROWS)
        copy_rows(jobs, schedules, self._arrays, self._schedules, slots)
        since_s = np.clip(now_s - self._progressed_at[slots], 0.0, self._config.progress_timeout_s)
        left = self._left[slots] - self._rates[slots] * since_s
        rounding = _ROUNDING * self._iterations[slots]
        # a job that should have ended by now and did not: some more, and not planned anew for each iteration
        overdue = np.maximum(1.0, OVERDUE_S * self._rates[slots])
        jobs.unsaved_J[:num_rows] += np.where(self._restarts[slots], self._rates[slots] * since_s, 0.0)
        jobs.since_migration_J[:num_rows] = np.minimum(now_s - self._migrated_at[slots], LONG_AGO_S)
        jobs.remaining_J[:num_rows] = np.where(left > -rounding, np.maximum(left, rounding), overdue)
        promised: Flags = self._promised[slots]
        rows: list[int] = slots.tolist()
        listed = tuple([self._jobs_of[slot] for slot in rows])
        return LiveJobTable(
            # not `job.job_id`: to touch a thousand jobs costs more than all else here
            table=JobTable([self._job_ids[slot] for slot in rows], jobs, schedules),
            listed=listed,
            curves=tuple([curve for slot in rows if (curve := self._curves[slot])]),
            promised=np.flatnonzero(promised),
            others=np.flatnonzero(~promised),
            gangs={row: int(self._gangs[slots[row]]) for row in np.flatnonzero(self._gangs[slots] > 1).tolist()},
        )

    def _write(self, state: PoolState, job: Job) -> int:
        """Write one row but for its schedule, in a new slot if the job has none; return the slot."""
        slot = self._slots.get(job.job_id)
        if slot is None:
            slot = self._add(job)
        before, spec = self._replace(slot, job), spec_of(job)
        self._counts[slot], self._lasting[slot] = False, None
        if job.phase is not Phase.ADMITTED:  # what a promise asks of its row is written once there is one
            self._curves[slot] = None
            return slot
        curve, key, promised = self._curves[slot], spec.profile_key, job.promised
        measured, changes_class = state.curves.get(key), promised != self._promised[slot]
        # a promised job has disturbances
        if measured is not self._measured[slot] or job.speed is not before.speed or curve is None or changes_class:
            curve = self._write_curve(state, job, slot)
            self._curve_keys[slot], self._measured[slot] = key, measured
        if curve is None:
            return slot
        self._counts[slot], self._lasting[slot] = True, _lasting(job)
        arrays = self._arrays
        self._iterations[slot] = spec.max_iterations
        self._left[slot] = spec.max_iterations - job.iteration
        self._curve_rates[slot] = curve.throughput(len(job.share_gpus)) if job.training else 0.0
        self._rates[slot] = progress_rate(job, curve)
        self._progressed_at[slot] = job.progressed_at_s
        self._write_unsaved(slot)
        self._restarts[slot], self._gangs[slot] = job.restarts_to_resize, spec.gpus_per_replica
        may_be_migrated = promised and not job.pinned and not job.keeps_its_blocks
        may_be_migrated = may_be_migrated and have_distances(state, promised_at_s(job))
        arrays.migration_budget_J[slot] = self._migration_budget if may_be_migrated else 0.0
        self._migrated_at[slot] = job.migrated_at_s
        arrays.held_J[slot] = held_num_gpus(job)
        arrays.stalled_until_J[slot] = stalled_until_s(job, resize_cost_of(state, spec), migration_cost_of(state, spec))
        if changes_class:
            self._promised[slot], self._planned[slot] = promised, None
        arrays.deadline_J[slot] = planned_deadline_s(state, job.deadline_s) if promised else np.inf
        return slot

    def _add(self, job: Job) -> int:
        slot = self._slots[job.job_id] = len(self._slots)
        self._job_ids.append(job.job_id)
        self._jobs_of.append(job)
        self._curve_keys.append("")
        self._measured.append(None)
        self._curves.append(None)
        self._planned.append(None)
        self._lasting.append(None)
        if slot == len(self._left):
            self._grow()
        self._ties[slot] = _tie(job.job_id.encode())
        return slot

    def _write_curve(self, state: PoolState, job: Job, slot: int) -> ScalingCurve | None:
        spec = spec_of(job)
        curve = known_curve(state, spec, job.speed, self._known, promised_at_s=promised_at_s(job))
        self._curves[slot] = curve
        if curve is not None:
            if len(curve.levels) > self._arrays.levels_JL.shape[1]:
                self._arrays = with_room(self._arrays, len(self._arrays.levels_JL), len(curve.levels))
            reserve_nodes = state.config.reserve_nodes if job.promised else 0
            disturbances = Disturbances(reserve_nodes, state.config.heartbeat_timeout_s, migration_cost_of(state, spec))
            write_levels(self._arrays, slot, curve, resize_cost_of(state, spec), disturbances)
        return curve

    def _forget(self) -> None:
        self._slots: dict[str, int] = {}
        self._job_ids: list[str] = []
        self._slot_of_object: dict[int, int] = {}  # by identity; `_jobs_of` keeps the object alive
        self._all_measured: Map[str, MeasuredCurve] | None = None
        self._jobs_of: list[Job] = []
        self._curve_keys: list[str] = []
        self._measured: list[MeasuredCurve | None] = []
        self._curves: list[ScalingCurve | None] = []
        self._planned: list[ShareSchedule | None] = []
        self._lasting: list[object] = []
        self._arrays: Jobs = empty_jobs(64, 8)
        self._schedules: Schedules = empty_schedules(64)
        self._left, self._iterations = np.zeros(64), np.zeros(64)
        self._rates, self._curve_rates, self._progressed_at = np.zeros(64), np.zeros(64), np.zeros(64)
        self._migrated_at = np.zeros(64)
        self._ties, self._promised = np.zeros(64, np.int64), np.zeros(64, np.bool_)
        self._counts, self._restarts = np.zeros(64, np.bool_), np.zeros(64, np.bool_)
        self._gangs = np.zeros(64, np.int64)

    def _forget_measured(self, curves: Map[str, MeasuredCurve]) -> None:
        """Write the rows of jobs whose curve was measured again."""
        self._all_measured = curves
        for slot, job in enumerate(self._jobs_of):
            if curves.get(self._curve_keys[slot]) is not self._measured[slot]:
                self._slot_of_object.pop(id(job), None)
                self._lasting[slot] = None

    def _grow(self) -> None:
        """Double the rows."""
        num_rows = 2 * len(self._left)
        self._arrays = with_room(self._arrays, num_rows, self._arrays.levels_JL.shape[1])
        self._schedules = with_rows(self._schedules, num_rows)
        single = ("_left", "_iterations", "_rates", "_curve_rates", "_progressed_at", "_migrated_at")
        for name in (*single, "_ties", "_promised", "_counts", "_restarts", "_gangs"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate((old, np.zeros_like(old))))
