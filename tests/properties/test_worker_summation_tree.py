"""Sums along the fixed tree have the same bits for any distribution of the virtual nodes."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from elasticflow.services.executor.worker.engine.summation_tree import TreeNode, TreeSum, subtrees, tree_sum

FLOATS = arrays.arrays(
    np.float32,
    st.integers(1, 40),
    elements=st.floats(-1e6, 1e6, width=32, allow_nan=False, allow_subnormal=False),
)


def add(left: np.float32, right: np.float32) -> np.float32:
    return left + right


@st.composite
def dealt(draw: st.DrawFn, count: int) -> list[range]:
    """Contiguous blocks of any sizes, empty ones too."""
    cuts = sorted(draw(st.lists(st.integers(0, count), max_size=count)))
    bounds = [0, *cuts, count]
    return [range(start, stop) for start, stop in pairwise(bounds)]


@given(FLOATS, st.data())
def test_any_contiguous_partition_gives_the_bits_of_one_worker(values, data):
    alone = TreeSum[np.float32](add)
    for index, value in enumerate(values):
        alone.push(TreeNode(0, index), value)
    finished = TreeSum[np.float32](add)
    for block in data.draw(dealt(len(values))):
        worker = TreeSum[np.float32](add)
        for index in block:
            worker.push(TreeNode(0, index), values[index])
        partials = worker.take()
        assert [node for node, _ in partials] == subtrees(block)
        for node, partial in partials:
            finished.push(node, partial)
    assert finished.total().tobytes() == alone.total().tobytes()


@given(st.integers(0, 300), st.integers(1, 300))
def test_a_block_is_a_few_subtrees_that_cover_it(start, length):
    nodes = subtrees(range(start, start + length))
    covered = [v for n in nodes for v in range(n.index << n.level, (n.index + 1) << n.level)]
    assert covered == list(range(start, start + length))
    assert len(nodes) <= max(2 * length.bit_length() - 1, 1)


@given(st.integers(1, 300))
def test_folding_keeps_a_logarithm_of_the_values(count):
    folded = TreeSum[int](lambda left, right: left + right)
    most = 0
    for index in range(count):
        folded.push(TreeNode(0, index), 1)
        partials = folded.take()
        most = max(most, len(partials))
        for node, value in partials:
            folded.push(node, value)
    assert most <= count.bit_length()
    assert folded.total() == count


def test_the_order_of_additions_is_the_trees():
    spelled = TreeSum[str](lambda left, right: f"({left}+{right})")
    for index, name in enumerate("abcdefg"):
        spelled.push(TreeNode(0, index), name)
    assert spelled.total() == "(((a+b)+(c+d))+((e+f)+g))"


def test_numbers_are_summed_along_it_too():
    assert tree_sum([1e16, 1.0, 1.0, 1.0]) == (1e16 + 1.0) + 2.0 != 1e16 + 1.0 + 1.0 + 1.0
