"""Sets of task indices, kept as ranges: the results of a load arrive in runs, so a few ranges say which are there."""

from bisect import bisect_left, bisect_right

Ranges = tuple[tuple[int, int], ...]  # (first, last), both included; in order, and a gap between any two


class IndexSet:
    """A growing set of indices. Its memory is that of its ranges."""

    def __init__(self, ranges: Ranges = ()) -> None:
        self._firsts = [first for first, _ in ranges]
        self._lasts = [last for _, last in ranges]
        self._num_indices = sum(last - first + 1 for first, last in ranges)

    def __len__(self) -> int:
        return self._num_indices

    @property
    def ranges(self) -> Ranges:
        return tuple(zip(self._firsts, self._lasts, strict=True))

    @property
    def first_missing(self) -> int:
        """The least index that is not in the set."""
        return self._lasts[0] + 1 if self._firsts[:1] == [0] else 0

    def add(self, first: int, last: int) -> int:
        """Add first to last, both included; how many of them are new."""
        begin = bisect_left(self._lasts, first - 1)  # the first range that touches them
        end = bisect_right(self._firsts, last + 1)
        before = sum(self._lasts[at] - self._firsts[at] + 1 for at in range(begin, end))
        if begin < end:
            first, last = min(first, self._firsts[begin]), max(last, self._lasts[end - 1])
        self._firsts[begin:end], self._lasts[begin:end] = [first], [last]
        num_new = last - first + 1 - before
        self._num_indices += num_new
        return num_new
