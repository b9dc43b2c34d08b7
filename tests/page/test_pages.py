"""Every page on a recorded ledger: no error, accessible, narrow, by keyboard, and harmless."""

from typing import Any

import pytest

from testbed.page_ledger import HOSTILE
from tests.page.axe import SETTLE_MS, findings_in_both_themes
from tests.page.conftest import Viewer

PAGES = ("", "job/kept", "job/rejected", "job/crashed", "nodes", "quote", "replay", "events", "tenants", "job/unknown")


@pytest.mark.parametrize("address", PAGES)
def test_a_page_is_accessible_in_both_themes_and_without_errors(viewer: Viewer, address: str) -> None:
    viewer.go(address)
    viewer.page.wait_for_timeout(SETTLE_MS)
    for details in viewer.page.query_selector_all("details > summary"):
        details.click()
    assert findings_in_both_themes(viewer.page) == []
    expected = {"Failed to load resource: the server responded with a status of 404 (Not Found)"}
    assert set(viewer.problems) <= (expected if address == "job/unknown" else set())


def test_all_pages_fit_a_narrow_screen(viewer: Viewer) -> None:
    viewer.page.set_viewport_size({"width": 390, "height": 844})
    for address in PAGES:
        viewer.go(address)
        viewer.page.wait_for_timeout(SETTLE_MS)
        assert viewer.page.evaluate("document.documentElement.scrollWidth") <= 390, address


WATCH_LABELS = """
  const { rect, restore, fillText } = CanvasRenderingContext2D.prototype;
  window.labels = {};
  window.margins = {};
  CanvasRenderingContext2D.prototype.rect = function (x, y, width, height) {
    this.clippedAt = x === 0 ? width : Infinity;
    return rect.call(this, x, y, width, height);
  };
  CanvasRenderingContext2D.prototype.restore = function () {
    this.clippedAt = Infinity;
    return restore.call(this);
  };
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    if (this.textAlign === "left") window.labels[text] = x + this.measureText(text).width <= this.clippedAt;
    const half = this.measureText(text).width / 2;
    if (this.textAlign === "center" && y > 26) window.margins[text] = [x - half, x + half];
    if (text === "now") window.nowX = this.textAlign === "left" ? x - 4 : x + 4;
    return fillText.call(this, text, x, y);
  };
"""


@pytest.mark.parametrize("width", [390, 1280])
def test_no_label_of_a_lane_is_cut(viewer: Viewer, width: int) -> None:
    viewer.page.set_viewport_size({"width": width, "height": 844})
    viewer.page.add_init_script(WATCH_LABELS)
    viewer.page.reload()
    while "rejected" not in (labels := viewer.page.evaluate("window.labels")):
        viewer.page.wait_for_timeout(50)
    assert labels["running · 4 GPUs"]
    assert [text for text, fits in labels.items() if not fits] == []
    now_x, margins = viewer.page.evaluate("[window.nowX, window.margins]")
    assert len(margins) >= 2
    assert [text for text, (left, right) in margins.items() if left < now_x < right] == []


def test_the_pool_shows_its_promises(viewer: Viewer) -> None:
    viewer.page.wait_for_selector("text=Promise lanes")
    numbers = dict(
        zip(*(viewer.page.locator(f".numbers {part}").all_inner_texts() for part in ("dt", "dd")), strict=True)
    )
    assert (numbers["● Promises live"], numbers["▲ At risk"], numbers["✓ Kept"]) == ("2", "1", "1")
    assert numbers["GPUs used"].startswith("8 of 8")
    viewer.page.click("text=As a table")
    viewer.page.wait_for_selector(".behind tbody tr")
    rows = viewer.page.locator(".behind tbody tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == ["risky", "running", "crashed", "rejected", "kept"]


def test_lanes_are_chosen_and_opened_with_the_keyboard(viewer: Viewer) -> None:
    lanes = viewer.page.locator(".lanes")
    lanes.focus()
    lanes.press("ArrowDown")
    viewer.page.wait_for_selector(".sentence >> text=risky")
    lanes.press("ArrowDown")
    viewer.page.wait_for_selector(".sentence >> text=running on")
    lanes.press("+")
    viewer.page.wait_for_selector("button:text('Fit'):not([disabled])")
    lanes.press("0")
    viewer.page.wait_for_selector("button:text('Fit'):disabled")
    lanes.press("Enter")
    viewer.page.wait_for_selector("h1:has-text('running')")


def test_hostile_texts_are_only_text(viewer: Viewer) -> None:
    viewer.go("job/crashed")
    viewer.page.wait_for_selector("text=onerror")
    assert HOSTILE in viewer.page.inner_text("main")
    viewer.go("events")
    viewer.page.wait_for_selector("text=JobFailed")
    assert viewer.page.locator("img[src='x']").count() == 0
    assert "broken in" not in viewer.page.title()
    assert viewer.problems == []


def test_the_policy_forbids_inline_code(viewer: Viewer) -> None:
    viewer.page.evaluate("""() => {
        const script = document.createElement('script');
        script.textContent = "document.title = 'broken in'";
        document.body.append(script);
        document.body.setAttribute('onclick', "document.title = 'broken in'");
        document.body.click();
    }""")
    assert "broken in" not in viewer.page.title()
    assert any("Content Security Policy" in problem for problem in viewer.problems)


def test_a_replay_shows_any_time_and_two_states_side_by_side(viewer: Viewer) -> None:
    viewer.go("replay")
    viewer.page.wait_for_selector("text=message 67 of 67")
    viewer.page.click("text=Compare from here")
    slider = viewer.page.get_by_label("Time of the replay")
    slider.fill("300")
    viewer.page.wait_for_selector("text=message 22 of 67")
    comparison = viewer.page.inner_text("section:has(#comparison-title) tbody")
    assert "risky\trunning, 4 GPUs" in comparison
    assert "not submitted" in comparison
    viewer.page.click("text=Next message")
    viewer.page.wait_for_selector("text=message 23 of 67")
    slider.focus()
    slider.press("Home")
    viewer.page.wait_for_selector("text=message 3 of 67")


def test_without_scripts_the_page_names_the_commands(viewer: Viewer, browser: Any) -> None:
    cookies = viewer.page.context.cookies()
    context = browser.new_context(java_script_enabled=False)
    context.add_cookies(cookies)
    page = context.new_page()
    page.goto(viewer.origin)
    assert "eflow watch" in page.inner_text("body")
    context.close()


def test_another_browser_needs_a_link_of_its_own(viewer: Viewer, browser: Any) -> None:
    context = browser.new_context()
    page = context.new_page()
    assert page.goto(viewer.origin).status == 401
    assert "open the link" in page.inner_text("body")
    context.close()
