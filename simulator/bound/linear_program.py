"""The relaxation as a linear program, solved by HiGHS.

Variables: met_j in [0, 1] for each job, and for each job, interval of its window and step of its curve (a cell) the
part of the step's GPU-seconds that it holds. Rows: each job does as much as it is met; each interval holds no more
GPU-seconds than the cluster has; and no cell is held to a larger part than its job is met (the links), without which
a part of a job could be run at its most economic speed, which no schedule of the whole job can do.
Axes: C cells, J jobs, I intervals, S steps.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack, vstack

from simulator.bound.demand import Demand, FloatArray, Grid, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """An optimum. price_I: of a GPU-second, in deadlines, the dual of the interval's capacity."""

    met_J: FloatArray
    price_I: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cells:
    job_C: IntArray
    interval_C: IntArray
    gpu_seconds_C: FloatArray  # if held whole
    part_C: FloatArray  # of the job that is done then


def num_cells(demand: Demand, grid: Grid) -> int:
    """Size of the program: variables, and rows that link them to their jobs."""
    return int((grid.last_J - grid.first_J) @ np.diff(demand.first_step_J))


def solve(demand: Demand, grid: Grid, num_gpus: int) -> Solution | None:
    """An optimum; None if HiGHS gives up."""
    cells = _cells(demand, grid)
    num_cells, num_jobs, num_intervals = len(cells.job_C), demand.num_jobs, len(grid.lengths_s_I)
    held, done = _rows(demand, grid, num_gpus, cells)
    each_C, each_J = np.arange(num_cells), np.arange(num_jobs)
    of_job = csr_array((-np.ones(num_cells), (each_C, cells.job_C)), shape=(num_cells, num_jobs))
    rows = [
        hstack([held, csr_array((num_intervals, num_jobs))]),
        hstack([-done, csr_array((np.ones(num_jobs), (each_J, each_J)))]),
        hstack([csr_array((np.ones(num_cells), (each_C, each_C))), of_job]),
    ]
    result = linprog(
        np.concatenate([np.zeros(num_cells), -np.ones(num_jobs)]),
        A_ub=vstack(rows, format="csr"),
        b_ub=np.concatenate([np.ones(num_intervals), np.zeros(num_jobs + num_cells)]),
        bounds=(0, 1),
        method="highs-ds",
    )
    if result.status != 0:
        return None
    return Solution(
        met_J=result.x[num_cells:],
        price_I=np.maximum(-result.ineqlin.marginals[:num_intervals], 0.0) / (num_gpus * grid.lengths_s_I),
    )


def least_gpu_seconds(demand: Demand, grid: Grid, num_gpus: int, met_J: FloatArray) -> float | None:
    """That meet each job to the given part; None if there are not so many.

    With the parts given, the links are mere bounds of variables: a program far easier than `solve`.
    """
    cells = _cells(demand, grid)
    held, done = _rows(demand, grid, num_gpus, cells)
    result = linprog(
        cells.gpu_seconds_C / cells.gpu_seconds_C.max(),
        A_ub=vstack([held, -done], format="csr"),
        b_ub=np.concatenate([np.ones(len(grid.lengths_s_I)), -met_J]),
        bounds=np.column_stack([np.zeros(len(cells.job_C)), met_J[cells.job_C]]),
        method="highs-ds",
    )
    return float(result.x @ cells.gpu_seconds_C) if result.status == 0 else None


def _rows(demand: Demand, grid: Grid, num_gpus: int, cells: _Cells) -> tuple[csr_array, csr_array]:
    """Part of each interval's capacity that the cells hold, shape (I, C); of each job that they do, (J, C)."""
    each_C = np.arange(len(cells.job_C))
    capacity_C = num_gpus * grid.lengths_s_I[cells.interval_C]
    held = csr_array(
        (cells.gpu_seconds_C / capacity_C, (cells.interval_C, each_C)),
        shape=(len(grid.lengths_s_I), len(each_C)),
    )
    done = csr_array((cells.part_C, (cells.job_C, each_C)), shape=(demand.num_jobs, len(each_C)))
    return held, done


def _cells(demand: Demand, grid: Grid) -> _Cells:
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
        interval_C=interval_C,
        gpu_seconds_C=gpu_seconds_C,
        part_C=gpu_seconds_C * demand.gain_S[step_C],
    )
