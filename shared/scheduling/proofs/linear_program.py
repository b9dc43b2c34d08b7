"""Linear programs, solved by HiGHS, and the one that can prove a rejection.

`minimise` takes any program: a cost over nonnegative variables with bounds on sums of them. `relax` asks it whether
all jobs can meet their deadlines if GPUs can be divided and moved for free:

    minimise load   subject to   each job completes its work before its deadline, no faster than it can,
                                 along the lower convex hull of its levels; and
                                 all jobs together hold at most load times the GPU-seconds of each interval.

A load above 1 means that no schedule exists, and the prices prove it. A load below 1 proves nothing.
Axes: J = jobs; B = intervals between some of the deadlines; V = variables, in `relax` one for (job, interval, edge of
its hull); R = rows, one for each sum; E = nonzero entries of the matrix.
"""

import contextlib
import sys
from dataclasses import dataclass
from typing import NamedTuple

import highspy
import numpy as np
from numpy.typing import NDArray

from elasticflow.shared.scheduling.compiled_loops import Floats, Integers
from elasticflow.shared.scheduling.proofs.payment_bound import Demands
from elasticflow.shared.solver_banner import drop_banner

drop_banner(highspy.Highs)

LEAST_SUPPLY = 1e-3  # of an interval in which few or no GPUs are there, as a part of all GPUs


class Entries(NamedTuple):
    """The matrix as (row, variable, value); no entry appears twice."""

    row_E: Integers
    variable_E: Integers
    value_E: Floats


def joined(*parts: Entries) -> Entries:
    """All entries in one matrix."""
    return Entries(
        np.concatenate([part.row_E for part in parts]),
        np.concatenate([part.variable_E for part in parts]),
        np.concatenate([part.value_E for part in parts]),
    )


class Optimum(NamedTuple):
    """price_R: the growth of the cost with the bound that holds a row."""

    value_V: Floats
    price_R: Floats


def minimise(cost_V: Floats, most_V: Floats, entries: Entries, least_R: Floats, most_R: Floats) -> Optimum | None:
    """Solve the program; deterministic. None if it has no solution or HiGHS gives up."""
    with contextlib.redirect_stdout(sys.stderr):  # some versions print before they can be told not to
        solver = highspy.Highs()
        for option, value in (("output_flag", False), ("solver", "simplex"), ("threads", 1)):
            solver.setOptionValue(option, value)
        solver.passModel(_as_highs(cost_V, most_V, entries, least_R, most_R))
        solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    solution = solver.getSolution()
    return Optimum(np.array(solution.col_value), np.array(solution.row_dual))


def _as_highs(cost_V: Floats, most_V: Floats, entries: Entries, least_R: Floats, most_R: Floats) -> highspy.HighsLp:
    by_variable = np.argsort(entries.variable_E, kind="stable")
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(cost_V), len(most_R)
    program.col_cost_, program.col_lower_, program.col_upper_ = cost_V, np.zeros(len(cost_V)), most_V
    program.row_lower_, program.row_upper_ = least_R, most_R
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    counts_V = np.bincount(entries.variable_E, minlength=len(cost_V))
    program.a_matrix_.start_ = np.append(0, np.cumsum(counts_V))
    program.a_matrix_.index_ = entries.row_E[by_variable]
    program.a_matrix_.value_ = entries.value_E[by_variable]
    return program


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaxation:
    """The optimum. instants_s: ends of the intervals, now first; price_B: of a GPU-second, at most 1."""

    load: float
    instants_s: Floats
    price_B: Floats


def relax(demands: Demands, *, max_variables: int) -> Relaxation | None:
    """Solve the program on as many intervals as `max_variables` allow; None if one interval is too many or a job is
    too slow.

    With fewer intervals than deadlines the load is still a lower bound, and the prices are still a proof.
    """
    jobs = demands.free_of_stops()
    until_J, ready_J, left_J = jobs.until_U, jobs.ready_U, jobs.left_U
    slope_JH, speed_JH = jobs.slope_UH, jobs.speed_UH
    num_intervals = max_variables // max(speed_JH.size, 1)
    if num_intervals < 1 or not (until_J > ready_J).all():
        return None
    ends_s_B = _thinned(np.unique(until_J), num_intervals)
    starts_s_B = np.append(0.0, ends_s_B[:-1])
    time_JB = np.clip(np.minimum(ends_s_B, until_J[:, None]) - np.maximum(starts_s_B, ready_J[:, None]), 0.0, None)
    most_JBH = time_JB[:, :, None] * speed_JH[:, None, :]
    if (most_JBH.sum((1, 2)) < left_J).any():
        return None
    job_V, interval_V, edge_V = np.nonzero(most_JBH)
    # In parts of a job's work and of an interval's GPU-seconds, so that all numbers are near 1.
    supply_B = demands.num_gpus * (ends_s_B - starts_s_B)
    if demands.drops:  # never 0, so that no part is infinite: the prices are checked against what there is
        missing_B = demands.missing(demands.now_s + starts_s_B, demands.now_s + ends_s_B)
        supply_B = np.maximum(supply_B - missing_B, LEAST_SUPPLY * supply_B)
    part_V = slope_JH[job_V, edge_V] * left_J[job_V] / supply_B[interval_V]
    solution = _solve(
        part_V,
        interval_V,
        job_V,
        most_JBH[job_V, interval_V, edge_V] / left_J[job_V],
        len(ends_s_B),
        len(left_J),
    )
    if solution is None:
        return None
    load, dual_B = solution
    price_B = np.clip(dual_B, 0.0, None) / supply_B
    return Relaxation(
        load=load,
        instants_s=demands.now_s + np.append(0.0, ends_s_B),
        price_B=price_B / max(price_B.max(), 1e-300),
    )


def _thinned(ends_s_B: Floats, most: int) -> Floats:
    """The instants, at most this many, evenly by rank, including the last one."""
    if len(ends_s_B) <= most:
        return ends_s_B
    return ends_s_B[np.linspace(-1, len(ends_s_B) - 1, most + 1).round().astype(int)[1:]]


def _solve(
    part_V: Floats,
    interval_V: NDArray[np.intp],
    job_V: NDArray[np.intp],
    most_V: Floats,
    num_intervals: int,
    num_jobs: int,
) -> tuple[float, Floats] | None:
    """The load, and the price of the whole supply of each interval; None if HiGHS gives up."""
    num_variables = len(part_V)
    variable_V = np.arange(num_variables)
    load_B = np.full(num_intervals, num_variables)  # the last variable
    optimum = minimise(
        np.append(np.zeros(num_variables), 1.0),
        np.append(most_V, np.inf),
        joined(
            Entries(interval_V, variable_V, part_V),
            Entries(np.arange(num_intervals), load_B, -np.ones(num_intervals)),
            Entries(num_intervals + job_V, variable_V, np.ones(num_variables)),
        ),
        np.append(np.full(num_intervals, -np.inf), np.ones(num_jobs)),
        np.append(np.zeros(num_intervals), np.ones(num_jobs)),
    )
    if optimum is None:
        return None
    return float(optimum.value_V[-1]), -optimum.price_R[:num_intervals]
