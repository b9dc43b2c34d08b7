"""A linear program solved by HiGHS: minimise a cost over nonnegative variables with bounds on sums of them.

Axes: V = variables; R = rows, one for each sum; E = nonzero entries of the matrix.
"""

from typing import NamedTuple

import highspy
import numpy as np

from elasticflow.shared.scheduling.compiled.compile import Floats, Integers


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


def minimise(
    cost_V: Floats, most_V: Floats, entries: Entries, least_R: Floats, most_R: Floats
) -> Optimum | None:
    """Solve the program; deterministic. None if it has no solution or HiGHS gives up."""
    solver = highspy.Highs()
    for option, value in (("output_flag", False), ("solver", "simplex"), ("threads", 1)):
        solver.setOptionValue(option, value)
    solver.passModel(_as_highs(cost_V, most_V, entries, least_R, most_R))
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    solution = solver.getSolution()
    return Optimum(np.array(solution.col_value), np.array(solution.row_dual))


def _as_highs(
    cost_V: Floats, most_V: Floats, entries: Entries, least_R: Floats, most_R: Floats
) -> highspy.HighsLp:
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
