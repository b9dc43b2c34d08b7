"""The lanes of the pool by mouse: zoom, filter and the sentence below the pointer; and its numbers."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.histories import NOW_S
from testbed.page_ledger import page_history, with_failed_best_effort, write_export
from testbed.served_page import served_page
from tests.page.conftest import Viewer, opened

AXIS_PX, LANE_PX = 26, 48  # as in lanes.js


def over_lane(viewer: Viewer, number: int) -> None:
    box = viewer.page.locator(".lanes canvas").bounding_box()
    viewer.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + AXIS_PX + (number + 0.5) * LANE_PX)


def test_the_sentence_is_of_the_lane_below_the_pointer(viewer: Viewer) -> None:
    for number, sentence in enumerate(("risky running on", "running running on", "crashed failed")):
        over_lane(viewer, number)
        viewer.page.wait_for_selector(f".sentence >> text={sentence}")


def test_a_click_opens_the_job_below_the_pointer(viewer: Viewer) -> None:
    over_lane(viewer, 1)
    viewer.page.mouse.down()
    viewer.page.mouse.up()
    viewer.page.wait_for_selector("h1:has-text('running')")


def test_the_wheel_zooms_around_the_pointer_only_with_control(viewer: Viewer) -> None:
    over_lane(viewer, 0)
    viewer.page.mouse.wheel(0, -100)
    viewer.page.wait_for_timeout(200)
    assert viewer.page.is_disabled("button:text('Fit')")
    viewer.page.keyboard.down("Control")
    viewer.page.mouse.wheel(0, -100)
    viewer.page.keyboard.up("Control")
    viewer.page.wait_for_selector("button:text('Fit'):not([disabled])")
    assert viewer.page.evaluate("visualViewport.scale") == 1, "the browser does not zoom, too"
    viewer.page.click("button:text('Fit')")
    viewer.page.wait_for_selector("button:text('Fit'):disabled")


def test_filters_choose_the_lanes(viewer: Viewer) -> None:
    lanes = viewer.page.locator(".lanes")
    assert lanes.get_attribute("aria-label").startswith("Lanes of 5 jobs")
    viewer.page.get_by_placeholder("job name").fill("r")
    viewer.page.wait_for_selector(".lanes[aria-label^='Lanes of 4 jobs']")
    viewer.page.get_by_placeholder("job name").fill("risk")
    viewer.page.wait_for_selector(".lanes[aria-label^='Lanes of 1 job.']")
    viewer.page.get_by_placeholder("job name").fill("")
    viewer.page.locator("section:has(#lanes-title) select").select_option("danger")
    viewer.page.wait_for_selector(".lanes[aria-label^='Lanes of 2 jobs']")  # at risk, and failed
    viewer.page.get_by_placeholder("word").fill("nobody")
    viewer.page.wait_for_selector("text=No decision with this word so far.")


@pytest.fixture
def with_broken(browser: Any, tmp_path: Path) -> Iterator[Viewer]:
    """The ledger goes on: risky ends, late, and a job without a promise fails."""
    file = tmp_path / "late.ledger"
    write_export(with_failed_best_effort(page_history().finished("risky", at_s=NOW_S + 165.0)), file)
    with served_page(str(file)) as link, opened(browser, link) as viewer:
        yield viewer


def numbers(viewer: Viewer) -> dict[str, str]:
    names, values = (viewer.page.locator(f".numbers {part}").all_inner_texts() for part in ("dt", "dd"))
    return dict(zip(names, values, strict=True))


def test_the_least_margin_names_its_job(viewer: Viewer) -> None:
    margin = numbers(viewer)["Least margin"]
    assert re.fullmatch(r"-?[\dhms. ]+ risky", margin.replace("\n", " ")), margin
    viewer.page.click(".numbers >> text=risky")
    viewer.page.wait_for_selector("h1:has-text('risky')")


def test_a_broken_promise_is_counted_and_marked(with_broken: Viewer) -> None:
    with_broken.page.wait_for_selector(".numbers .bad")
    shown = numbers(with_broken)
    assert (shown["✕ Broken"], shown["▲ At risk"], shown["● Promises live"]) == ("1", "0", "1")
    assert shown["✕ Failed"] == "2", "with the one that had no promise"
    with_broken.page.click("text=As a table")
    row = with_broken.page.locator(".behind tbody tr", has_text="risky").inner_text()
    assert ("✕ broken" in row, "-5.0s" in row) == (True, True)
    assert with_broken.problems == []
