"""The replay saves one file that a browser opens without the server."""

from pathlib import Path
from typing import Any

from tests.page.axe import findings
from tests.page.conftest import VIEWPORT, Viewer, watched


def assert_accessible_on_each_screen(saved: Viewer) -> None:
    for theme, width in (("light", 1280), ("dark", 390)):
        saved.page.emulate_media(color_scheme=theme)
        saved.page.set_viewport_size({"width": width, "height": 844})
        assert findings(saved.page) == []
        assert saved.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_saved_replay_opens_without_the_server_as_it_was(viewer: Viewer, browser: Any, tmp_path: Path) -> None:
    viewer.go("replay")
    viewer.page.wait_for_selector("text=message 67 of 67")
    viewer.page.get_by_label("Time of the replay").fill("300")
    viewer.page.wait_for_selector("text=message 22 of 67")
    with viewer.page.expect_download() as download:
        viewer.page.click("text=Save as HTML")
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.name == "eflow-message-22.html"
    context = browser.new_context(viewport=VIEWPORT, offline=True)
    saved = watched(context.new_page(), "")
    saved.page.goto(file.as_uri())
    shown = saved.page.inner_text("main")
    assert "kept" in shown
    assert "risky" not in shown
    assert_accessible_on_each_screen(saved)
    assert saved.problems == viewer.problems == []
    context.close()


def test_a_saved_replay_has_the_policy_that_is_laid_over(viewer: Viewer, browser: Any, tmp_path: Path) -> None:
    viewer.go("replay")
    viewer.page.wait_for_selector("text=message 67 of 67")
    viewer.page.click("text=Lay over")
    viewer.page.wait_for_selector("text=3 of 5 jobs end otherwise under edf")
    with viewer.page.expect_download() as download:
        viewer.page.click("text=Save as HTML")
    download.value.save_as(tmp_path / "saved.html")
    context = browser.new_context(viewport=VIEWPORT, offline=True)
    saved = watched(context.new_page(), "")
    saved.page.goto((tmp_path / "saved.html").as_uri())
    assert "3 of 5 jobs end otherwise under edf, which decides from the start" in saved.page.inner_text("main")
    outlines = saved.page.locator(".track .other")
    assert outlines.count() > 0
    assert all(each.bounding_box()["width"] > 1 for each in outlines.all())
    assert_accessible_on_each_screen(saved)
    context.close()
