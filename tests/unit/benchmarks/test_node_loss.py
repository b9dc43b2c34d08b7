"""The benchmark of lost nodes judges when the survivors' first step begins and when it ends."""

from benchmarks.engine.node_loss import first_without, judged
from testbed.fault_evidence import Step

SURVIVORS, LOST = (1, 2), 3


def step(iteration: int, pid: int, began_s: float, ended_s: float) -> Step:
    return Step(job_id="losing", pid=pid, iteration=iteration, began_s=began_s, ended_s=ended_s)


BEFORE = [step(7, pid, 9.9, 10.1) for pid in (*SURVIVORS, LOST)] + [step(8, pid, 10.2, 10.3) for pid in SURVIVORS]
FIRST = [step(9, 1, 13.1, 13.2), step(9, 2, 13.2, 30.0)]
NEXT = step(10, 1, 30.0, 30.1)


def test_the_first_step_lasts_from_the_first_beginning_to_the_last_end() -> None:
    shared = step(8, LOST, 10.2, 10.3)
    assert first_without({LOST}, [*BEFORE, shared, *FIRST, NEXT], since_s=10.0) == (13.1, 30.0)


def test_the_first_step_is_not_known_until_all_survivors_have_ended_it() -> None:
    for completed in ([], FIRST[:1], FIRST):
        assert first_without({LOST}, [*BEFORE[:3], *completed], since_s=10.0) is None


def test_a_step_that_begins_in_time_and_stalls_is_above_the_goal() -> None:
    result = judged([{"begun_s": 3.1, "ended_s": 3.2}, {"begun_s": 3.1, "ended_s": 20.0}])
    assert (result["begun"]["above_goal"], result["ended"]["above_goal"]) == (0, 1)
    assert result["begun"]["worst_s"] == 3.1
    assert result["ended"]["worst_s"] == 20.0
