"""Which numbers of virtual nodes a profiling run measures on one GPU."""

import pytest

from elasticflow.shared.messages.measurements import counts_to_measure


@pytest.mark.parametrize(
    ("most", "counts"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (5, (1, 2, 3, 4, 5)),
        (8, (1, 2, 3, 4, 6, 8)),
        (50, (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 50)),
    ],
)
def test_powers_of_two_midpoints_and_all_virtual_nodes_are_measured(most: int, counts: tuple[int, ...]) -> None:
    assert counts_to_measure(most) == counts
