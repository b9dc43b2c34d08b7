"""Announced ends of nodes: in the decisions of the pool, and beside each node."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.page_ledger import page_history, with_node_ends, write_export
from testbed.served_page import served_page
from tests.page.conftest import Viewer, opened


@pytest.fixture
def viewer(browser: Any, tmp_path: Path) -> Iterator[Viewer]:
    file = tmp_path / "ends.ledger"
    write_export(with_node_ends(page_history()), file)
    with served_page(str(file)) as link, opened(browser, link) as viewer:
        yield viewer


@pytest.mark.parametrize("width", [1280, 390])
def test_announced_ends_are_shown(viewer: Viewer, width: int) -> None:
    viewer.page.set_viewport_size({"width": width, "height": 844})
    viewer.page.wait_for_selector(".feed >> text=node-1")
    assert viewer.page.evaluate("document.documentElement.scrollWidth") <= width
    assert viewer.page.locator(".numbers dd").first.inner_text().startswith("8 of 8"), "jobs still use draining GPUs"
    viewer.go("nodes")
    viewer.page.wait_for_selector("[aria-label='Node node-0'] >> text=(in 2h")
    viewer.page.wait_for_selector("[aria-label='Node node-1'] >> text=▲ draining: its jobs move")
    assert viewer.page.locator("text=draining").count() == 1
    assert viewer.page.evaluate("document.documentElement.scrollWidth") <= width
    assert viewer.problems == []
