"""`memoize_last` returns its last result only for the same arguments."""

from elasticflow.shared.frozen_values import memoize_last


def test_equal_arguments_are_computed_once_and_others_again() -> None:
    asked: list[tuple[object, ...]] = []

    @memoize_last
    def answer(values: list[int], factor: float) -> int:
        asked.append((values, factor))
        return int(sum(values) * factor)

    values = [1, 2]
    assert answer(values, 2.0) == answer(values, float("2")) == 6
    assert len(asked) == 1, "numbers are compared, and need not be the same object"
    assert answer([1, 2], 2.0) == 6
    assert len(asked) == 2, "an equal list may be another one tomorrow"
    assert answer(values, 3.0) == 9
    assert answer(values, 2.0) == 6
    assert len(asked) == 4, "only the last answer is memoize_last"
