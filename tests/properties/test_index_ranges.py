"""An `IndexSet` is the set of the indices that were added, in the fewest ranges."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.messages.load_spec import IndexSet

RUNS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda run: (run[0], run[0] + run[1])), max_size=20
)


@given(runs=RUNS)
def test_it_has_what_was_added(runs: list[tuple[int, int]]) -> None:
    indices, expected = IndexSet(), set[int]()
    for first, last in runs:
        added = set(range(first, last + 1))
        assert indices.add(first, last) == len(added - expected)
        expected |= added
    assert {index for first, last in indices.ranges for index in range(first, last + 1)} == expected
    assert len(indices) == len(expected)
    assert indices.first_missing == min(set(range(60)) - expected)
    assert all(following[0] > before[1] + 1 for before, following in pairwise(indices.ranges))
    again = IndexSet(indices.ranges)
    assert (again.ranges, len(again)) == (indices.ranges, len(indices))
