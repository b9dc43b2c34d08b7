"""What `shared.runtime` may know of the services that it runs."""

import ast
from pathlib import Path
from typing import get_args

import elasticflow.shared.runtime
from elasticflow.shared.messages.events import AdmissionEvent, PlanEvent

PLAN_EVENTS = {event.__name__ for event in get_args(PlanEvent)} | {"AdmissionEvent"}


def test_the_runtime_names_no_event_of_a_plan() -> None:
    """What a planner alone needs is behind the `Policy` interface."""
    assert {event.__name__ for event in get_args(AdmissionEvent)} < PLAN_EVENTS
    (folder,) = elasticflow.shared.runtime.__path__
    named = {
        f"{path.name}: {node.id}"
        for path in Path(folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and node.id in PLAN_EVENTS
    }
    assert named == set()
