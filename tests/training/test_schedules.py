"""Random schedules of joins, leaves, kills and stops on real processes, with the same bits on all workers at each step.

In the bitwise mode they are also those of an undisturbed run. A few seeds here; `python -m benchmarks.engine.schedules`
runs fifty for each number of virtual nodes.
"""

import pytest

from benchmarks.engine.schedules import Conditions, fast_differences, prove, prove_fast
from benchmarks.engine.sensitive import NUM_SAMPLES
from benchmarks.engine.stage import CHANCES, Played, schedule
from benchmarks.engine.transports import TransportName
from tests.support.rings import few_daily


@pytest.mark.parametrize(("virtual_nodes", "seeds"), few_daily([(4, (3,)), (8, (0,)), (16, (2,))], 1))
async def test_no_schedule_changes_the_bits(virtual_nodes, seeds):
    row = await prove(virtual_nodes, seeds, Conditions(at_once=2))
    assert row["unfinished"] == []
    assert row["differences"] == []
    assert row["iterations_read_wrongly"] == []
    assert row["states_compared"] > row["generations"] > row["schedules"]


@pytest.mark.nightly("test_uneven_workers.py switches between unequal workers, and a test here has equal ones")
async def test_no_schedule_of_unequal_workers_on_fast_and_slow_slots_changes_the_bits():
    row = await prove(16, (1,), is_uneven=True, cpu_shares=(0.8, 0.4))
    assert row["unfinished"] == []
    assert row["differences"] == []
    assert row["states_compared"] > row["generations"] > row["schedules"]


@pytest.mark.parametrize("transport", few_daily([TransportName.ASYNCHRONOUS, TransportName.STAGED], 1))
async def test_no_schedule_changes_the_bits_over_the_transports_of_gpus(transport):
    """One ends all calls of a closed group without an error, and leaves garbage, as NCCL does."""
    row = await prove(4, (1, 2), Conditions(at_once=2, transport=transport))
    assert row["unfinished"] == []
    assert row["differences"] == []
    fast = await prove_fast((1,), Conditions(transport=transport))
    assert fast["unfinished"] == []
    assert fast["differences"] == []


async def test_in_the_fast_mode_replicas_agree_and_samples_follow_the_ideal_order():
    row = await prove_fast((0,))
    assert row["unfinished"] == []
    assert row["differences"] == []
    assert row["iterations_read_wrongly"] == []
    assert row["states_compared"] > row["generations"] > row["schedules"]


def test_violations_in_the_fast_mode_are_named():
    def held(bits: str, *, seen: int = 1, weight: float = 0.5) -> str:
        return f"{bits} {' '.join([str(seen)] * NUM_SAMPLES)} {weight}"

    quiet = {i: held("quiet") for i in range(4)}
    states = (
        *((0, held(bits)) for bits in ("a", "a")),
        *((1, held(bits)) for bits in ("b", "c")),
        (2, held("d", seen=2)),
        (3, held("e", weight=0.51)),
    )
    played = Played(seed=7, events=(), killed=0, generations=1, held=states, final=(3, "e"))
    assert fast_differences(played, quiet) == [
        "seed 7: iteration 1 begins with 2 states",
        "seed 7: iteration 2 begins with other samples seen",
        "seed 7: iteration 3 begins with weights that rounding does not explain",
    ]


def test_a_schedule_follows_from_its_seed():
    played = [schedule(seed) for seed in range(100)]
    assert played == [schedule(seed) for seed in range(100)]
    assert {event.kind for events in played for event in events} == {"start", *CHANCES}
    assert all(1 <= event.size <= 6 for events in played for event in events)
