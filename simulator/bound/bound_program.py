"""The relaxation as a linear program, solved by HiGHS.

Variables: met_j in [0, 1] for each job, and for each job, interval of its window and step of its curve (a cell) the
part of the step's GPU-seconds that it holds. Rows: each job does as much as it is met; each interval holds no more
GPU-seconds than the cluster has; no cell is held to a larger part than its job is met (the links). Without the links,
a part of a job could run at its most economic speed, which no schedule of the whole job can do.
Each GPU type has its own intervals.
Axes: C cells, G GPU types, J jobs, I intervals, S steps.
"""

from dataclasses import dataclass

import numpy as np

from elasticflow.shared.scheduling.proofs.linear_program import Entries, joined, minimise
from elasticflow.simulator.bound.feasible_demand import FeasibleDemand, FloatArray, Grid, IntArray


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
