"""The skip link stays on its page; a second export replaces the first."""

from pathlib import Path

from testbed.page_ledger import exported, page_history, with_node_ends
from tests.page.conftest import Viewer, playwright
from tests.page.waiting import until


def test_the_skip_link_moves_the_focus_and_stays_on_the_page(viewer: Viewer) -> None:
    viewer.go("job/kept")
    viewer.page.reload()
    viewer.page.wait_for_selector("h1:has-text('kept')")
    viewer.page.keyboard.press("Tab")
    assert viewer.page.evaluate("document.activeElement.className") == "skip"
    viewer.page.keyboard.press("Enter")
    until(viewer.page, "document.activeElement.id === 'content'")
    viewer.page.evaluate("location.hash = 'content'")  # as an old bookmark does
    viewer.page.wait_for_timeout(100)
    assert viewer.page.inner_text("main h1").startswith("kept")
    viewer.page.go_back()
    assert viewer.page.inner_text("main h1").startswith("kept")


def test_a_second_export_is_shown_in_place_of_the_first(viewer: Viewer, tmp_path: Path) -> None:
    files = {"first": page_history(), "second": with_node_ends(page_history())}
    for name, history in files.items():
        (tmp_path / name).write_bytes(exported(history))
    viewer.go("replay")
    viewer.page.wait_for_selector("text=message 67 of 67")
    for name, history in (*files.items(), ("second", files["second"])):
        viewer.page.get_by_label("Open an export").set_input_files(tmp_path / name)
        count = len(history.messages)
        # the first is as long as the live one, which a step must not be taken in
        playwright.expect(viewer.page.get_by_label("Ledger")).to_have_value("export")
        viewer.page.wait_for_selector(f"text=message {count} of {count}")
        viewer.page.click("text=Previous message")
        viewer.page.wait_for_selector(f"text=message {count - 1} of {count}")
    assert viewer.page.get_by_label("Ledger").input_value() == "export"
    viewer.page.get_by_label("Ledger").select_option("live")
    viewer.page.wait_for_selector("text=message 67 of 67")
    assert viewer.problems == []


def test_an_export_that_cannot_be_read_leaves_the_open_one(viewer: Viewer, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(exported(page_history())[:-20])
    viewer.go("replay")
    viewer.page.wait_for_selector("text=message 67 of 67")
    viewer.page.get_by_label("Open an export").set_input_files(bad)
    viewer.page.wait_for_selector("main [role=alert] >> text=cannot be replayed: cut off")
    assert viewer.page.locator("text=message 67 of 67").count() == 1
