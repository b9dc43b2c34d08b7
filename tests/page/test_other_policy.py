"""Another policy on a replay: laid over the lanes, in a table, and refused in words."""

import pytest

from tests.page.axe import findings
from tests.page.conftest import Viewer
from tests.page.waiting import until

WATCH_OUTLINES = """
  const { strokeRect } = CanvasRenderingContext2D.prototype;
  window.outlines = 0;
  CanvasRenderingContext2D.prototype.strokeRect = function (...box) {
    if (this.getLineDash().join() === "2,3") window.outlines += 1;
    return strokeRect.apply(this, box);
  };
"""


@pytest.fixture
def replay(viewer: Viewer) -> Viewer:
    viewer.page.add_init_script(WATCH_OUTLINES)
    viewer.page.reload()
    viewer.go("replay")
    viewer.page.wait_for_selector("text=message 67 of 67")
    return viewer


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_another_policy_is_laid_over_and_removed(replay: Viewer, theme: str, width: int) -> None:
    page = replay.page
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme=theme)
    assert page.evaluate("window.outlines") == 0
    page.get_by_role("combobox", name="Policy").select_option("edf")
    page.click("text=Lay over")
    page.wait_for_selector("text=3 of 5 jobs end otherwise under edf, which decides from the start")
    page.wait_for_selector(".legend >> text=GPUs under edf, modelled")
    until(page, "window.outlines > 0")
    page.locator(".lanes").press("ArrowDown")
    page.wait_for_selector(".sentence >> text=under edf: late, not ended")
    page.click("text=Its jobs as a table")
    rows = dict(row.split("\t", 1) for row in page.locator("section:has(#policy-title) tbody tr").all_inner_texts())
    assert rows["met in all"].split() == ["1", "3", "1"]
    assert rows["risky"].count("met at ") == 1
    assert rows["rejected"].endswith("late, not ended")
    assert findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.click("text=Remove")
    page.wait_for_selector(".legend >> text=GPUs under edf", state="detached")
    assert replay.problems == []


def test_what_cannot_be_compared_is_told(replay: Viewer) -> None:
    replay.page.get_by_label("It decides").select_option("here")
    replay.page.click("text=Lay over")
    replay.page.wait_for_selector("[role=alert] >> text=nothing follows sequence 67: the ledger ends at 67")
    replay.page.click("text=Previous message")
    replay.page.wait_for_selector("text=message 66 of 67")
    replay.page.click("text=Lay over")
    replay.page.wait_for_selector("text=under edf, which decides after message 66")
    assert replay.page.locator("[role=alert]").count() == 0


def test_a_comparison_can_be_stopped(replay: Viewer) -> None:
    replay.page.route("**/api/other-policy*", lambda route: None)  # never answered
    replay.page.click("text=Lay over")
    replay.page.wait_for_selector("button:text('Computing …'):disabled")
    replay.page.click("text=Stop")
    replay.page.wait_for_selector("button:text('Lay over'):not([disabled])")
    assert replay.page.locator("[role=alert]").count() == 0
