"""The relaxation as a linear program, solved by HiGHS.

Variables: met_j in [0, 1] for each job, and for each job, interval of its window and step of its curve (a cell) the
part of the step's GPU-seconds that it holds. Rows: each job does as much as it is met; each interval holds no more
GPU-seconds than the cluster has; no cell is held to a larger part than its job is met (the links). Without the links,
a part of a job could run at its most economic speed, which no schedule of the whole job can do.
Axes: C cells, J jobs, I intervals, S steps.
"""

from dataclasses import dataclass

import numpy as np

from elasticflow.shared.scheduling.proofs.linear_program import Entries, joined, minimise
from elasticflow.simulator.bound.feasible_demand import Demand, FloatArray, Grid, IntArray


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
    """Size of the program: cell variables, and rows that link them to their jobs."""
    return int((grid.last_J - grid.first_J) @ np.diff(demand.first_step_J))


def solve(demand: Demand, grid: Grid, num_gpus: int) -> Solution | None:
    """An optimum; None if HiGHS gives up."""
    cells = _cells(demand, grid)
    num_cells, num_jobs, num_intervals = len(cells.job_C), demand.num_jobs, len(grid.lengths_s_I)
    each_C, each_J = np.arange(num_cells), np.arange(num_jobs)
    link_C = num_intervals + num_jobs + each_C
    optimum = minimise(
        np.append(np.zeros(num_cells), -np.ones(num_jobs)),
        np.ones(num_cells + num_jobs),
        joined(
            *_rows(grid, num_gpus, cells),
            Entries(num_intervals + each_J, num_cells + each_J, np.ones(num_jobs)),
            Entries(link_C, each_C, np.ones(num_cells)),
            Entries(link_C, num_cells + cells.job_C, -np.ones(num_cells)),
        ),
        np.full(num_intervals + num_jobs + num_cells, -np.inf),
        np.append(np.ones(num_intervals), np.zeros(num_jobs + num_cells)),
    )
    if optimum is None:
        return None
    price_I = np.maximum(-optimum.price_R[:num_intervals], 0.0) / (num_gpus * grid.lengths_s_I)
    return Solution(met_J=optimum.value_V[num_cells:], price_I=price_I)


def least_gpu_seconds(demand: Demand, grid: Grid, num_gpus: int, met_J: FloatArray) -> float | None:
    """The fewest GPU-seconds that meet each job to the part met_J; None if the cluster has fewer.

    With met_J fixed, the links are bounds of variables: this program is much easier than that of `solve`.
    """
    cells = _cells(demand, grid)
    optimum = minimise(
        cells.gpu_seconds_C / cells.gpu_seconds_C.max(),
        met_J[cells.job_C],
        joined(*_rows(grid, num_gpus, cells)),
        np.full(len(grid.lengths_s_I) + demand.num_jobs, -np.inf),
        np.append(np.ones(len(grid.lengths_s_I)), -met_J),
    )
    return None if optimum is None else float(optimum.value_V @ cells.gpu_seconds_C)


def _rows(grid: Grid, num_gpus: int, cells: _Cells) -> tuple[Entries, Entries]:
    """Rows: each cell's part of its interval's capacity, then minus its part of its job."""
    each_C, num_intervals = np.arange(len(cells.job_C)), len(grid.lengths_s_I)
    capacity_C = num_gpus * grid.lengths_s_I[cells.interval_C]
    held = Entries(cells.interval_C, each_C, cells.gpu_seconds_C / capacity_C)
    return held, Entries(num_intervals + cells.job_C, each_C, -cells.part_C)


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
