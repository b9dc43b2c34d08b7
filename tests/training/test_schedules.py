"""Random schedules of joins, leaves, kills and stops on real processes: every worker holds the same bits at every step.

A few seeds here; `python -m benchmarks.engine.schedules` plays fifty for each number of virtual nodes.
"""

import pytest

from benchmarks.engine.playing import CHANCES, schedule
from benchmarks.engine.schedules import prove


@pytest.mark.parametrize(("virtual_nodes", "seeds"), [(4, (3, 4)), (8, (0, 1)), (16, (2, 5))])
async def test_no_schedule_leaves_a_trace(virtual_nodes, seeds):
    row = await prove(virtual_nodes, seeds, at_once=2)
    assert row["unfinished"] == []
    assert row["differences"] == []
    assert row["iterations_read_wrongly"] == []
    assert row["states_compared"] > row["generations"] > row["schedules"]


def test_a_schedule_follows_from_its_seed():
    played = [schedule(seed) for seed in range(100)]
    assert played == [schedule(seed) for seed in range(100)]
    assert {event.kind for events in played for event in events} == {"start", *CHANCES}
    assert all(1 <= event.size <= 6 for events in played for event in events)
