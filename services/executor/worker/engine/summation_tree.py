"""One fixed binary tree over the virtual nodes, which defines the order of every sum. Pure.

Sums of floating-point numbers depend on the order of additions. Node (level, index) covers the virtual nodes from index
* 2^level up to (index + 1) * 2^level, and is the sum of its two halves, the lower one on the left. Any worker that has
both halves may add them. So a worker's contiguous block becomes a few subtrees (at most 2 log2 V, and one if it is
aligned), and any other worker can finish the sum.
"""
# pyright: strict

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A complete subtree. Leaf v is Node(0, v)."""

    level: int
    index: int


class TreeSum(Generic[T]):
    """A sum in progress, from left to right. Keeps about log2 of the number of values.

    add: the sum of a left and a right value; it may destroy both.
    """

    def __init__(self, add: Callable[[T, T], T]) -> None:
        self._add = add
        self._partials: list[tuple[TreeNode, T]] = []

    def push(self, node: TreeNode, value: T) -> None:
        """Add the next value on the right, at once to its left half if that is here."""
        while self._partials and node.index % 2 and self._partials[-1][0] == TreeNode(node.level, node.index - 1):
            _, left = self._partials.pop()
            node, value = TreeNode(node.level + 1, node.index // 2), self._add(left, value)
        self._partials.append((node, value))

    def take_left(self, node: TreeNode) -> T | None:
        """Remove and return the left half of this node; the caller adds to it, and pushes the sum of both."""
        if node.index % 2 and self._partials and self._partials[-1][0] == TreeNode(node.level, node.index - 1):
            return self._partials.pop()[1]
        return None

    def take_lefts(self, node: TreeNode) -> list[T]:
        """Remove and return what `push` would add this node to: the smallest left half first."""
        lefts: list[T] = []
        while (left := self.take_left(node)) is not None:
            lefts.append(left)
            node = TreeNode(node.level + 1, node.index // 2)
        return lefts

    def take(self) -> list[tuple[TreeNode, T]]:
        """Remove and return the subtrees so far, from left to right."""
        partials, self._partials = self._partials, []
        return partials

    def total(self) -> T:
        """The sum of all; if V is no power of two, missing right halves count nothing."""
        partials = self.take()
        _, value = partials.pop()
        while partials:
            _, left = partials.pop()
            value = self._add(left, value)
        return value


def subtrees(block: Iterable[int]) -> list[TreeNode]:
    """The subtrees of a contiguous block of virtual nodes, from left to right."""
    covered = TreeSum[None](lambda left, right: None)
    for virtual_node in block:
        covered.push(TreeNode(0, virtual_node), None)
    return [node for node, _ in covered.take()]


def tree_sum(values: Sequence[float]) -> float:
    """The sum of one number for each virtual node."""
    summed = TreeSum[float](lambda left, right: left + right)
    for virtual_node, value in enumerate(values):
        summed.push(TreeNode(0, virtual_node), value)
    return summed.total()
