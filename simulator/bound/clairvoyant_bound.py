"""The most deadlines that any scheduler could meet: the clairvoyant linear relaxation.

Jobs are known in advance and may be preempted and resized for free at any instant, but each pays its cheapest start
once; between two events each holds any mix of GPU counts, and of GPU types if the pool has several. Each job is met to
a part in [0, 1]; the bound is the largest sum. Small problems are solved exactly, large ones are bounded from above by
prices, closely.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from elasticflow.shared.scheduling.jobs.scaling_curve import ResizeCost
from elasticflow.shared.scheduling.proofs.linear_program import Entries, joined, minimise
from elasticflow.simulator.bound import price_ascent
from elasticflow.simulator.bound.feasible_demand import FeasibleDemand, FloatArray, Grid, IntArray
from elasticflow.simulator.workload.workload import Workload

# --- linear program ------------------------------------------------------------------------------------
# The relaxation as a linear program, solved by HiGHS.
#
# Variables: met_j in [0, 1] for each job, and for each job, interval of its window and step of its curve (a cell) the
# part of the step's GPU-seconds that it holds. Rows: each job does as much as it is met; each interval holds no more
# GPU-seconds than the cluster has; no cell is held to a larger part than its job is met (the links). Without the links,
# a part of a job could run at its most economic speed, which no schedule of the whole job can do.
# Each GPU type has its own intervals.
# Axes: C cells, G GPU types, J jobs, I intervals, S steps.


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """An optimum. price_GI: of a GPU-second, in deadlines, the dual of the interval's capacity."""

    met_J: FloatArray
    price_GI: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cells:
    job_C: IntArray
    type_C: IntArray
    interval_C: IntArray
    gpu_seconds_C: FloatArray  # if held whole
    part_C: FloatArray  # of the job that is done then


def num_cells(demand: FeasibleDemand, grid: Grid) -> int:
    """Size of the program: cell variables, and rows that link them to their jobs."""
    return int((grid.last_J - grid.first_J) @ np.diff(demand.first_step_J))


def solve(demand: FeasibleDemand, grid: Grid, num_gpus_G: IntArray) -> Solution | None:
    """An optimum; None if HiGHS gives up."""
    cells, capacity_GI = _cells(demand, grid), _capacity(grid, num_gpus_G)
    num_cells, num_jobs = len(cells.job_C), demand.num_jobs
    each_C, each_J = np.arange(num_cells), np.arange(num_jobs)
    link_C = capacity_GI.size + num_jobs + each_C
    optimum = minimise(
        np.append(np.zeros(num_cells), -np.ones(num_jobs)),
        np.ones(num_cells + num_jobs),
        joined(
            *_rows(capacity_GI, cells),
            Entries(capacity_GI.size + each_J, num_cells + each_J, np.ones(num_jobs)),
            Entries(link_C, each_C, np.ones(num_cells)),
            Entries(link_C, num_cells + cells.job_C, -np.ones(num_cells)),
        ),
        np.full(capacity_GI.size + num_jobs + num_cells, -np.inf),
        np.append(np.ones(capacity_GI.size), np.zeros(num_jobs + num_cells)),
    )
    if optimum is None:
        return None
    price_GI = np.maximum(-optimum.price_R[: capacity_GI.size], 0.0).reshape(capacity_GI.shape) / capacity_GI
    return Solution(met_J=optimum.value_V[num_cells:], price_GI=price_GI)


def least_gpu_seconds(demand: FeasibleDemand, grid: Grid, num_gpus_G: IntArray, met_J: FloatArray) -> float | None:
    """The fewest GPU-seconds that meet each job to the part met_J; None if the cluster has fewer.

    With met_J fixed, the links are bounds of variables: this program is much easier than that of `solve`.
    """
    cells, capacity_GI = _cells(demand, grid), _capacity(grid, num_gpus_G)
    optimum = minimise(
        cells.gpu_seconds_C / cells.gpu_seconds_C.max(),
        met_J[cells.job_C],
        joined(*_rows(capacity_GI, cells)),
        np.full(capacity_GI.size + demand.num_jobs, -np.inf),
        np.append(np.ones(capacity_GI.size), -met_J),
    )
    return None if optimum is None else float(optimum.value_V @ cells.gpu_seconds_C)


def _capacity(grid: Grid, num_gpus_G: IntArray) -> FloatArray:
    """GPU-seconds of each type in each interval, shape (G, I)."""
    return num_gpus_G[:, None] * grid.lengths_s_I


def _rows(capacity_GI: FloatArray, cells: _Cells) -> tuple[Entries, Entries]:
    """Rows: each cell's part of its interval's capacity, then minus its part of its job."""
    each_C, row_C = np.arange(len(cells.job_C)), cells.type_C * capacity_GI.shape[1] + cells.interval_C
    held = Entries(row_C, each_C, cells.gpu_seconds_C / capacity_GI.ravel()[row_C])
    return held, Entries(capacity_GI.size + cells.job_C, each_C, -cells.part_C)


def _cells(demand: FeasibleDemand, grid: Grid) -> _Cells:
    """All cells, by job, then step, then interval."""
    windows_J = grid.last_J - grid.first_J
    steps_J = np.diff(demand.first_step_J)
    job_S = np.repeat(np.arange(demand.num_jobs), steps_J)
    step_C = np.repeat(np.arange(len(job_S)), windows_J[job_S])
    job_C = job_S[step_C]
    first_cell_S = np.cumsum([0, *windows_J[job_S][:-1]])
    interval_C = np.arange(len(step_C)) - first_cell_S[step_C] + grid.first_J[job_C]
    ends_s_C = np.minimum(grid.instants_s_B[interval_C + 1], demand.closes_s_J[job_C])
    starts_s_C = np.maximum(grid.instants_s_B[interval_C], demand.opens_s_J[job_C])
    gpu_seconds_C = (ends_s_C - starts_s_C) * demand.num_gpus_S[step_C]
    return _Cells(
        job_C=job_C,
        type_C=demand.type_S[step_C],
        interval_C=interval_C,
        gpu_seconds_C=gpu_seconds_C,
        part_C=gpu_seconds_C * demand.gain_S[step_C],
    )


# --- bound ---------------------------------------------------------------------------------------------

# Sizes in cells (job x interval x step), so that the answer never depends on the speed of the machine.
_SOLVED_CELLS = 60_000  # HiGHS takes seconds
_ALL_MET_CELLS = 1_500_000  # HiGHS takes 10 s to show that all jobs can be met
_GRID_CELLS = 12_000_000  # more are merged
_CELLS_PRICED = 2_000_000_000  # 20 s
_MIN_ANSWERS, _MAX_ANSWERS = 400, 2_000
_CLOSE = 1e-6  # relative


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceProfile:
    """The price of a GPU-second at the optimum, in deadlines: piece b lasts from starts_s_B[b] to the next start."""

    starts_s_B: tuple[float, ...]
    price_per_gpu_s_B: tuple[float, ...]

    def at(self, now_s: float) -> float:
        """0 before the first start."""
        piece = bisect_right(self.starts_s_B, now_s) - 1
        return self.price_per_gpu_s_B[piece] if piece >= 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """jobs_met: no schedule meets more. exact: it is the optimum of the relaxation, not a bound of it.

    intervals: between events, on which the relaxation was solved. gpu_hours: the fewest that reach the optimum found
    (if not exact, about what one uses). prices: by GPU type, "" if all GPUs are equal. met_by_job: the part to which
    each job that is feasible alone is met there.
    """

    jobs_met: float
    feasible_alone: int
    intervals: int
    exact: bool
    gpu_hours: float
    prices: Mapping[str, PriceProfile]
    met_by_job: dict[str, float]

    @property
    def whole_jobs_met(self) -> int:
        """The bound in whole jobs: no schedule meets a part of one."""
        return math.floor(self.jobs_met * (1 + _CLOSE))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The bound of one component."""

    value: float
    exact: bool
    grid: Grid
    price_GI: FloatArray
    gpu_seconds: float
    met_J: FloatArray


def clairvoyant_bound(
    workload: Workload, num_gpus_by_type: Mapping[str, int], cost: ResizeCost, max_intervals: int | None = None
) -> Bound:
    """The bound of the SLO jobs of `workload`. max_intervals: merge intervals beyond this number.

    num_gpus_by_type: of the pool; the type is "" if all GPUs are equal.
    """
    demand, num_gpus_G = FeasibleDemand.of(workload, num_gpus_by_type, cost), np.array(list(num_gpus_by_type.values()))
    components = demand.components()
    kept = _share_kept(components, max_intervals)
    parts = [_bounded(component, num_gpus_G, kept) for component in components]
    return Bound(
        jobs_met=math.fsum(part.value for part in parts),
        feasible_alone=demand.num_jobs,
        intervals=sum(len(part.grid.lengths_s_I) for part in parts),
        exact=all(part.exact for part in parts),
        gpu_hours=math.fsum(part.gpu_seconds for part in parts) / 3600,
        prices={name: _joined(parts, gpu_type) for gpu_type, name in enumerate(num_gpus_by_type)},
        met_by_job={
            job_id: float(met)
            for component, part in zip(components, parts, strict=True)
            for job_id, met in zip(component.job_ids, part.met_J, strict=True)
        },
    )


def _share_kept(components: list[FeasibleDemand], max_intervals: int | None) -> float:
    """Part of all intervals that the grids may have: max_intervals, or as many as are solved in minutes."""
    grids = [Grid.of(component) for component in components]
    intervals = sum(len(grid.lengths_s_I) for grid in grids)
    if max_intervals is not None:
        return min(1.0, max_intervals / max(intervals, 1))
    cells = sum(map(num_cells, components, grids))
    return min(1.0, _GRID_CELLS / max(cells, 1))


def _bounded(demand: FeasibleDemand, num_gpus_G: IntArray, share_kept: float) -> _Part:
    complete = Grid.of(demand)
    grid = complete if share_kept >= 1 else Grid.of(demand, int(share_kept * len(complete.lengths_s_I)))
    cells = num_cells(demand, grid)
    if cells <= _SOLVED_CELLS and (part := _solved(demand, grid, num_gpus_G)):
        return part
    answers = min(max(_CELLS_PRICED // cells, _MIN_ANSWERS), _MAX_ANSWERS)
    best, mean = price_ascent.ascend(demand, grid, num_gpus_G, answers)
    if best.dual_value >= demand.num_jobs * (1 - _CLOSE) and cells <= _ALL_MET_CELLS:
        all_met_J = np.ones(demand.num_jobs)
        least = least_gpu_seconds(demand, grid, num_gpus_G, all_met_J)
        if least is not None:
            return _Part(
                value=float(demand.num_jobs),
                exact=grid.complete,
                grid=grid,
                price_GI=np.zeros((len(num_gpus_G), len(grid.lengths_s_I))),
                gpu_seconds=least,
                met_J=all_met_J,
            )
    return _Part(
        value=best.dual_value,
        exact=False,
        grid=grid,
        price_GI=best.price_GI,
        gpu_seconds=float(np.minimum(mean.gpu_seconds_GI, num_gpus_G[:, None] * grid.lengths_s_I).sum()),
        met_J=mean.met_J,
    )


def _solved(demand: FeasibleDemand, grid: Grid, num_gpus_G: IntArray) -> _Part | None:
    """The solution by HiGHS; None if it fails.

    The value is that of the prices: a bound for any tolerance of the solver.
    """
    solution = solve(demand, grid, num_gpus_G)
    if solution is None:
        return None
    met_J = np.clip(solution.met_J - _CLOSE, 0.0, 1.0)
    gpu_seconds = least_gpu_seconds(demand, grid, num_gpus_G, met_J)
    if gpu_seconds is None:
        return None
    value = price_ascent.answer(demand, grid, num_gpus_G, solution.price_GI).dual_value
    return _Part(
        value=value,
        exact=grid.complete and value <= solution.met_J.sum() + _CLOSE * demand.num_jobs,
        grid=grid,
        price_GI=solution.price_GI,
        gpu_seconds=gpu_seconds,
        met_J=solution.met_J,
    )


def _joined(parts: list[_Part], gpu_type: int) -> PriceProfile:
    """One step function of all parts, in order of time; the price is 0 between them."""
    starts_s = [start_s for part in parts for start_s in part.grid.instants_s_B.tolist()]
    prices = [price for part in parts for price in [*part.price_GI[gpu_type].tolist(), 0.0]]
    kept = [at for at in range(len(starts_s)) if at + 1 == len(starts_s) or starts_s[at] < starts_s[at + 1]]
    return PriceProfile(
        starts_s_B=tuple(starts_s[at] for at in kept), price_per_gpu_s_B=tuple(prices[at] for at in kept)
    )
