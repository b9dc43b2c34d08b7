"""GPU types in the tables of `replay`, where a pool has several."""

from rich.console import RenderableType

from elasticflow.shared.runtime.process.terminal import console
from elasticflow.simulator.replay.state_tables import as_object, tables
from testbed.histories import NOW_S, pool, submit
from tests.support.two_types import answer, due_in, two_types


def text(shown: RenderableType) -> list[list[str]]:
    screen = console()
    with screen.capture() as capture:
        screen.print(shown)
    return [line.split() for line in capture.get().splitlines()]


def test_jobs_and_nodes_have_their_type() -> None:
    history = two_types()
    answer(history, submit("a", **due_in(500.0)))
    shown = as_object(history.state, NOW_S)
    assert shown["num_gpus_by_type"] == {"P100": 4, "V100": 4}
    lines = text(tables(shown))
    assert lines[0][-4:] == ["(4", "P100,", "4", "V100)"]
    assert any(line[:1] == ["a"] and "P100" in line for line in lines)
    assert [line[4] for line in lines if line[:1] in (["node-0"], ["node-1"])] == ["V100", "P100"]


def test_a_pool_without_types_has_no_column_of_them() -> None:
    assert not any("TYPE" in line for line in text(tables(as_object(pool(4).state, NOW_S))))
