"""Given a pool of two GPU types, a promise is at risk when GPUs of its own type are lost."""

import pytest

from elasticflow.services.monitor.model import start
from elasticflow.services.monitor.policy import decide
from elasticflow.shared.messages import events
from testbed.histories import NOW_S, History, spec
from tests.support.two_types import due_in, two_types
from tests.support.worker_events import admitted, joined


@pytest.mark.parametrize(("lost", "at_risk"), [("node-0", ["fast"]), ("node-1", ["slow"])])
def test_a_type_that_vanishes_puts_only_its_jobs_at_risk(lost: str, at_risk: list[str]) -> None:
    promised = {"minimum_satisfactory_share": (NOW_S, NOW_S + 400.0, 1.0), **due_in(500.0, spec=spec(**due_in(500.0)))}
    history = two_types().then(admitted("fast", **promised), admitted("slow", gpu_type="P100", **promised))
    incarnation = history.state.nodes[lost].incarnation
    history.then(events.NodeLost(node_id=lost, incarnation=incarnation, reason="silent", at_s=NOW_S))
    risks = [event for event in decide(start(history.state), (), NOW_S + 1.0) if isinstance(event, events.JobAtRisk)]
    assert [risk.job_id for risk in risks] == at_risk
    assert [risk.projected_finish_s for risk in risks] == [None]


@pytest.mark.parametrize("returns", ["P100", "K80"])
def test_a_node_that_comes_back_with_another_type_puts_its_former_jobs_at_risk(returns: str) -> None:
    """P100 is known to the pool, K80 is new."""
    promised = {"minimum_satisfactory_share": (NOW_S, NOW_S + 400.0, 1.0), **due_in(500.0, spec=spec(**due_in(500.0)))}
    history = two_types().then(admitted("fast", **promised), joined("again", "node-0", gpu_type=returns))
    (risk,) = decide(start(history.state), (), NOW_S + 11.0)
    assert isinstance(risk, events.JobAtRisk)
    assert risk.job_id == "fast"


def test_the_only_node_of_a_pool_keeps_no_promise_with_another_type() -> None:
    promised = {"minimum_satisfactory_share": (NOW_S, NOW_S + 400.0, 1.0), **due_in(500.0, spec=spec(**due_in(500.0)))}
    history = History().configured().then(joined("one", gpu_type="V100"), admitted("a", **promised))
    history.then(joined("again", gpu_type="K80"))
    (risk,) = decide(start(history.state), (), NOW_S + 11.0)
    assert isinstance(risk, events.JobAtRisk)
    assert (risk.job_id, risk.projected_finish_s) == ("a", None)
