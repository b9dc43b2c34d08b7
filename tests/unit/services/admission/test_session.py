"""Sessions of admission are values: a command returns the next ones and leaves the earlier ones as they are."""

import pytest

from elasticflow.services.admission.session import SessionsByType
from elasticflow.services.admission.submit import submit as submitted
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.gpu_types import part_of_type
from testbed.histories import NOW_S, pool, submit
from tests.support.two_types import due_in, two_types


def test_a_submission_returns_the_next_sessions_and_leaves_the_earlier_ones() -> None:
    state = pool(4).state
    start = SessionsByType.start(state, NOW_S, PlanningCache())
    once, again = submitted(start, submit("a")), submitted(start, submit("a"))
    assert once.whole.events == again.whole.events != ()
    assert (start.whole.events, start.state) == ((), state)
    assert "a" in once.state.live_jobs


def test_only_the_latest_session_plans_on_its_plan() -> None:
    start = SessionsByType.start(pool(4).state, NOW_S, PlanningCache())
    planned = start.with_session("", start.by_type[""].with_plan())
    later = submitted(planned, submit("a"))
    assert later.by_type[""].plan.schedules.keys() == {"a"}
    with pytest.raises(AssertionError, match="a later session"):
        submitted(planned, submit("b"))


def test_after_each_command_each_session_has_the_part_of_its_type() -> None:
    sessions = SessionsByType.start(two_types().state, NOW_S, PlanningCache())
    for command in (
        submit("a", **due_in(500.0)),
        submit("b", **due_in(40.0)),
        submit("a"),
        submit("c", **due_in(20.0)),
    ):
        sessions = submitted(sessions, command)
        for gpu_type, session in sessions.by_type.items():
            assert session.state == part_of_type(sessions.state, gpu_type)
            assert session.pool == sessions.state
