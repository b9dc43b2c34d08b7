"""The live jobs of a pool as rows of arrays. A row is written again only when its job changed since it was last asked
for: with a thousand jobs, of which three changed, a decision costs three rows and one copy."""

import zlib
from dataclasses import dataclass

import numpy as np

from shared.messages.cluster import PoolConfig, ShareSchedule
from shared.messages.pool_state import Job, MeasuredCurve, Phase, PoolState, spec_of
from shared.scheduling.compiled import Integers
from shared.scheduling.filling import Jobs
from shared.scheduling.job_table import (
    JobTable,
    empty_jobs,
    with_room,
    with_rows,
    write_failures,
    write_levels,
    write_schedule,
)
from shared.scheduling.outlook import (
    held_num_gpus,
    known_curve,
    planned_deadline_s,
    progress_rate,
    resize_cost,
    stalled_until_s,
)
from shared.scheduling.profile import Schedules, empty_schedules
from shared.scheduling.resize_cost import ResizeCost
from shared.scheduling.scaling_curve import ScalingCurve

_SPARE_ROWS = 8  # for those that ask to come in
OVERDUE_S = 1.0  # of work, at its speed, that a job is taken to need when it should have ended and did not
_ROUNDING = 1e-12  # of a job's iterations: below it nothing is left but the rounding of sums


@dataclass(frozen=True, slots=True)
class PoolTable:
    """The jobs whose speed is known: `listed[row]` is the job of a row; promised and other rows apart."""

    table: JobTable
    listed: tuple[Job, ...]
    promised: Integers
    others: Integers


class PoolRows:
    """A memo beside the pure functions: what it answers depends on the state and the instant alone."""

    def __init__(self) -> None:
        self._config: PoolConfig | None = None
        self._num_gpus = 0
        self._cost: ResizeCost = ResizeCost()
        self._forget()

    def table(self, state: PoolState, now_s: float) -> PoolTable:
        """The table of all admitted jobs at an instant; its arrays are the caller's own."""
        num_gpus, cost = state.num_gpus, resize_cost(state)
        if state.config is not self._config or num_gpus != self._num_gpus or cost is not self._cost:
            self._forget()
            self._config, self._num_gpus, self._cost = state.config, num_gpus, cost
        elif len(self._slots) > 2 * len(state.live_jobs) + 64:
            self._forget()
        slots, listed = list[int](), list[Job]()
        for job in state.live_jobs.values():
            slot = self._slots.get(job.job_id)
            if (
                slot is None
                or self._jobs_of[slot] is not job
                or state.curves.get(self._curve_keys[slot]) is not self._measured[slot]
            ):
                if job.phase is not Phase.ADMITTED:
                    continue
                slot = self._write(state, job, slot)
            if self._curves[slot] is not None:
                slots.append(slot)
                listed.append(job)
        chosen: Integers = np.array(slots, np.int64)
        # not in the order of the map
        order: list[int] = np.lexsort((self._ties[chosen], self._arrays.deadline_J[chosen])).tolist()
        return self._gather(chosen[order], tuple(listed[index] for index in order), now_s)

    def _gather(self, slots: Integers, listed: tuple[Job, ...], now_s: float) -> PoolTable:
        num_rows = len(slots)
        assert self._config is not None
        since_s = np.clip(now_s - self._progressed_at[slots], 0.0, self._config.progress_timeout_s)
        left = self._left[slots] - self._rates[slots] * since_s
        rounding = _ROUNDING * self._iterations[slots]
        # a job that should have ended by now and did not: some more, and not planned anew for each iteration
        overdue = np.maximum(1.0, OVERDUE_S * self._rates[slots])
        left = np.where(left > -rounding, np.maximum(left, rounding), overdue)
        most_segments = int(self._schedules.count_J[slots].max()) if num_rows else 0
        num_levels = int(self._arrays.num_levels_J[slots].max()) if num_rows else 1
        jobs = empty_jobs(num_rows + _SPARE_ROWS, num_levels)
        for new, old in zip(jobs, self._arrays, strict=True):
            new[:num_rows] = old[slots, :num_levels] if old.ndim == 2 else old[slots]
        jobs.remaining_J[:num_rows] = left
        schedules = empty_schedules(num_rows + _SPARE_ROWS)
        for new, old in zip(schedules, self._schedules, strict=True):
            if old.ndim == 2:
                new[:num_rows, :most_segments] = old[slots, :most_segments]
            else:
                new[:num_rows] = old[slots]
        promised = self._promised[slots]
        table = JobTable([job.job_id for job in listed], jobs, schedules)
        return PoolTable(table, listed, np.flatnonzero(promised), np.flatnonzero(~promised))

    def _write(self, state: PoolState, job: Job, slot: int | None) -> int:
        """One row, in a new slot if it has none."""
        if slot is None:
            slot = len(self._slots)
            self._slots[job.job_id] = slot
            self._jobs_of.append(job)
            self._curve_keys.append(spec_of(job).profile_key)
            self._measured.append(None)
            self._curves.append(None)
            self._planned.append(None)
            if slot == len(self._left):
                self._grow()
            self._ties[slot] = zlib.crc32(job.job_id.encode())
        speed, self._jobs_of[slot] = self._jobs_of[slot].speed, job
        curve = self._curves[slot]
        measured = state.curves.get(self._curve_keys[slot])
        if measured is not self._measured[slot] or job.speed is not speed or curve is None:
            curve = self._write_curve(state, job, slot)
            self._measured[slot] = measured
        if curve is None:
            return slot
        arrays, spec = self._arrays, spec_of(job)
        self._iterations[slot] = spec.max_iterations
        self._left[slot] = spec.max_iterations - job.iteration
        self._rates[slot] = progress_rate(job, curve)
        self._progressed_at[slot] = job.progressed_at_s
        arrays.held_J[slot] = held_num_gpus(job)
        arrays.stalled_until_J[slot] = stalled_until_s(job, self._cost)
        promised = self._promised[slot] = job.promised
        arrays.deadline_J[slot] = planned_deadline_s(state, job.deadline_s) if promised else np.inf
        planned = job.planned_share if promised else ()
        if planned is not self._planned[slot]:
            write_schedule(self._schedules, slot, planned)
            self._planned[slot] = planned
        return slot

    def _write_curve(self, state: PoolState, job: Job, slot: int) -> ScalingCurve | None:
        curve = known_curve(state, spec_of(job), job.speed)
        self._curves[slot] = curve
        if curve is not None:
            if len(curve.levels) > self._arrays.levels_JL.shape[1]:
                self._arrays = with_room(self._arrays, len(self._arrays.levels_JL), len(curve.levels))
            write_levels(self._arrays, slot, curve, self._cost)
            reserve_nodes = state.config.reserve_nodes if job.promised else 0
            write_failures(self._arrays, slot, reserve_nodes, state.config.heartbeat_timeout_s)
        return curve

    def _forget(self) -> None:
        self._slots: dict[str, int] = {}
        self._jobs_of: list[Job] = []
        self._curve_keys: list[str] = []
        self._measured: list[MeasuredCurve | None] = []
        self._curves: list[ScalingCurve | None] = []
        self._planned: list[ShareSchedule | None] = []
        self._arrays: Jobs = empty_jobs(64, 8)
        self._schedules: Schedules = empty_schedules(64)
        self._left, self._rates, self._progressed_at, self._iterations = (np.zeros(64) for _ in range(4))
        self._ties, self._promised = np.zeros(64, np.int64), np.zeros(64, np.bool_)

    def _grow(self) -> None:
        """Twice the rows."""
        num_rows = 2 * len(self._left)
        self._arrays = with_room(self._arrays, num_rows, self._arrays.levels_JL.shape[1])
        self._schedules = with_rows(self._schedules, num_rows)
        for name in ("_left", "_rates", "_progressed_at", "_iterations", "_ties", "_promised"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate((old, np.zeros_like(old))))
