"""Waiting in a browser. The page's policy forbids code of text, with which `wait_for_function` asks again."""

from typing import Any

from tests.page.conftest import PATIENCE_MS

_STEP_MS = 50


def until(page: Any, expression: str) -> None:
    """Return once the expression is true in the page."""
    for _ in range(PATIENCE_MS // _STEP_MS):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(_STEP_MS)
    raise AssertionError(f"never true: {expression}")
