"""Each event names the services that write it, and each service names the events that it writes."""

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from elasticflow.shared.messages.events import Event

SERVICES = Path(__file__).parents[3] / "services"
MADE_BY = {"failure_on_type": "ProfilingFailed"}  # in shared code
EVENTS = {event.__name__: event for event in get_args(Event)}


def written_by(service: str) -> set[str]:
    """The events that the code of a service constructs. Workers write none: their messages have equal names."""
    files = (file for file in (SERVICES / service).rglob("*.py") if "worker" not in file.parts)
    calls = (node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    called = {ast.unparse(call.func).rpartition(".")[2] for call in calls}
    return (called | {event for function, event in MADE_BY.items() if function in called}) & set(EVENTS)


@pytest.mark.parametrize("service", ["admission", "allocator", "placement", "monitor", "executor"])
def test_a_service_and_its_events_name_each_other(service: str) -> None:
    written = written_by(service)
    described = ast.get_docstring(ast.parse((SERVICES / service / "__init__.py").read_text())) or ""
    assert set(re.findall(r"\w+", described)) & set(EVENTS) == written
    assert [name for name in written if service not in (EVENTS[name].__doc__ or "")] == []
