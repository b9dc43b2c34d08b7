"""An admission session is a value: a command returns the next one and leaves the earlier one as it is."""

import pytest

from elasticflow.services.admission.commands.submit import submit as submitted
from elasticflow.services.admission.session import AdmissionSession
from tests.support.histories import NOW_S, pool, submit


def test_a_submission_returns_the_next_session_and_leaves_the_earlier_one() -> None:
    state = pool(4).state
    start = AdmissionSession.start(state, NOW_S)
    once, again = submitted(start, submit("a")), submitted(start, submit("a"))
    assert once.events == again.events != ()
    assert (start.events, start.state) == ((), state)
    assert "a" in once.state.live_jobs


def test_only_the_latest_session_plans_on_its_plan() -> None:
    planned = AdmissionSession.start(pool(4).state, NOW_S).with_plan()
    later = submitted(planned, submit("a"))
    assert later.plan.schedules.keys() == {"a"}
    with pytest.raises(AssertionError, match="a later session"):
        submitted(planned, submit("b"))
