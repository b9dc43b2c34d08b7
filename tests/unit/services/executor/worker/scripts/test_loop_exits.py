"""Where a script's loop over the elastic loader may be left within an epoch."""

import sys
from collections.abc import Callable, Iterator

import pytest

from elasticflow.services.executor.worker.scripts.elastic_script import exits_of_loop

found: list[str] = []


def batches() -> Iterator[int]:
    found[:] = [each.rpartition(":")[2] for each in exits_of_loop(sys._getframe(1))]
    yield 1


def breaks() -> int:
    for batch in batches():
        if batch == 1:
            break
    return 1


def returns_and_breaks() -> int:
    for _ in range(1):
        for number, batch in enumerate(
            batches(),
        ):
            if batch > 1:
                return number
            if batch > 2:
                break
        break
    return 0


def stays() -> None:
    for _ in batches():
        for _ in range(2):
            break
        while True:
            break

        def other() -> int:
            return 1

        other()


@pytest.mark.parametrize(("loop", "lines"), [(breaks, [3]), (returns_and_breaks, [6, 8]), (stays, [])])
def test_breaks_and_returns_of_the_loop_itself_are_found(loop: Callable[[], object], lines: list[int]) -> None:
    loop()
    first = loop.__code__.co_firstlineno
    assert [int(each) - first for each in found] == lines


def test_a_loop_without_its_source_has_none() -> None:
    names: dict[str, object] = {"batches": batches}
    exec("for batch in batches():\n    break", names)
    assert found == []
