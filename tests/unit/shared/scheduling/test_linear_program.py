"""Linear programs: the optimum and its prices, none where there is none, the same again."""

import subprocess
import sys

import numpy as np
import pytest
from scipy.optimize import linprog

from elasticflow.shared.scheduling.compiled_loops import Floats
from elasticflow.shared.scheduling.proofs.linear_program import Entries, Optimum, joined, minimise

NO_LEAST = -np.inf


def of_matrix(cost: list[float], most: list[float], matrix: Floats, most_R: list[float]) -> Optimum | None:
    rows, variables = np.nonzero(matrix)
    entries = Entries(rows, variables, matrix[rows, variables])
    return minimise(np.array(cost), np.array(most), entries, np.full(len(most_R), NO_LEAST), np.array(most_R))


def test_the_optimum_and_what_a_row_more_would_bring() -> None:
    found = of_matrix([-1.0, -2.0], [5.0, np.inf], np.array([[1.0, 1.0], [0.0, 1.0]]), [4.0, 3.0])
    assert found is not None
    assert found.value_V.tolist() == [1.0, 3.0]
    assert found.price_R.tolist() == [-1.0, -1.0]


def test_a_row_may_have_a_least_and_parts_of_a_matrix_are_joined() -> None:
    one = np.array([0])
    entries = joined(Entries(one, one, np.array([2.0])), Entries(one, one + 1, np.array([1.0])))
    found = minimise(np.array([3.0, 1.0]), np.array([9.0, 4.0]), entries, np.array([10.0]), np.array([10.0]))
    assert found is not None
    assert found.value_V.tolist() == [3.0, 4.0]


def test_none_where_nothing_satisfies_all_rows() -> None:
    assert of_matrix([1.0], [1.0], np.array([[-1.0]]), [-2.0]) is None, "at least 2 of at most 1"


def test_none_where_there_is_no_end_to_it() -> None:
    assert of_matrix([-1.0], [np.inf], np.array([[-1.0]]), [0.0]) is None


@pytest.mark.parametrize("seed", range(20))
def test_another_interface_of_the_solver_finds_the_same_cost_and_the_prices_prove_it(seed: int) -> None:
    chance = np.random.default_rng(seed)
    matrix = chance.uniform(0.0, 1.0, (6, 9)) * (chance.uniform(size=(6, 9)) < 0.6)
    cost, most, most_R = -chance.uniform(0.1, 1.0, 9), np.full(9, 3.0), chance.uniform(0.5, 4.0, 6)
    found = of_matrix(cost.tolist(), most.tolist(), matrix, most_R.tolist())
    assert found is not None
    expected = linprog(cost, A_ub=matrix, b_ub=most_R, bounds=(0, 3))
    assert found.value_V @ cost == pytest.approx(expected.fun)
    assert (matrix @ found.value_V <= most_R + 1e-6).all()
    left_V = cost - found.price_R @ matrix
    assert (found.price_R <= 1e-9).all()
    assert found.price_R @ most_R + np.minimum(left_V, 0.0) @ most == pytest.approx(expected.fun)
    again = of_matrix(cost.tolist(), most.tolist(), matrix, most_R.tolist())
    assert again is not None
    assert again.value_V.tolist() == found.value_V.tolist()


def test_the_banner_of_the_solver_reaches_no_terminal_and_what_is_printed_later_does() -> None:
    program = (
        "import os, highspy, elasticflow.shared.scheduling.proofs.linear_program\n"
        "highspy.Highs()\n"
        "os.write(1, b'error of its C code')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("error of its C code", "")
