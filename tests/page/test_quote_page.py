"""The quote page, with an admission of the test: cost, bars, a reservation, and more quotes than admission gives."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from testbed.histories import NOW_S
from tests.page.axe import findings
from tests.page.conftest import Viewer
from tests.page.waiting import until

END_S = NOW_S + 58.0  # of the recorded ledger
WATCH_BARS = """
  const { strokeRect } = CanvasRenderingContext2D.prototype;
  window.bars = 0;
  CanvasRenderingContext2D.prototype.strokeRect = function (...box) {
    window.bars += 1;
    return strokeRect.apply(this, box);
  };
"""


class Admission:
    """Answers the browser's requests for quotes. refusals: how many of the next ones are to be asked again."""

    def __init__(self, page: Any) -> None:
        self.asked: list[int] = []
        self.refusals = 0
        page.route("**/api/session*", self._session)
        page.route("**/api/quote*", self._quote)

    def _session(self, route: Any) -> None:
        response = route.fetch()
        session = response.json()
        session["operator"] = session["sources"]["live"]["is_live"] = True
        route.fulfill(response=response, json=session)

    def _quote(self, route: Any) -> None:
        iterations = int(parse_qs(urlsplit(route.request.url).query)["iterations"][0])
        at_s = END_S
        if route.request.method == "POST":
            reserved = {"accepted": True, "type": "QuoteReserved", "text": "", "job_id": "digits-3f9a"}
            route.fulfill(json=reserved | {"deadline_s": at_s + 600.0, "until_s": at_s + 300.0})
            return
        self.asked.append(iterations)
        if self.refusals:
            self.refusals -= 1
            route.fulfill(status=503, body="tenant 'lab' asks for more than 10 quotes a second: ask again in a second")
            return
        route.fulfill(
            json={
                "earliest_deadline_s": at_s + iterations,
                "gpu_seconds": 3600.0,
                "explanation": "",
                "gpu_type": "",
                "at_s": at_s,
                "promised": [[at_s + 10.0, at_s + iterations, 2]],
                "target": "train.py:Digits",
                "arguments": "",
                "price": 2.48,
                "cost": 2.48,
                "priced_type": "V100",
            }
        )


@pytest.fixture
def admission(viewer: Viewer) -> Iterator[Admission]:
    viewer.page.add_init_script(WATCH_BARS)
    admission = Admission(viewer.page)
    viewer.page.reload()
    viewer.go("quote")
    viewer.page.wait_for_selector("text=Earliest deadline")
    yield admission
    viewer.page.unroute_all(behavior="ignoreErrors")


def number(page: Any, title: str) -> str:
    return page.inner_text(f".numbers > div:has(dt:text-is('{title}')) dd")


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_a_quote_has_its_price_its_bars_and_the_command_of_its_code(
    viewer: Viewer, admission: Admission, theme: str, width: int
) -> None:
    page = viewer.page
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": width, "height": 844})
    assert number(page, "Price") == "$2.48 at $2.48 a V100-hour"
    assert number(page, "Needs").startswith("3,600 GPU-seconds")
    assert page.inner_text(".command code").startswith("eflow submit train.py:Digits --deadline ")
    page.get_by_label("Filter").fill("like ")
    page.evaluate("window.bars = 0")
    until(page, "window.bars > 0")
    assert findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert viewer.problems == []


def test_a_reservation_is_in_the_command_until_a_slider_moves(viewer: Viewer, admission: Admission) -> None:
    page = viewer.page
    page.click("text=Reserve for 5 minutes")
    page.wait_for_selector("[role=status] >> text=The deadline")
    in_browser = f"new Date({(END_S + 600.0) * 1000}).toLocaleTimeString('en-GB')"
    assert f"The deadline {page.evaluate(in_browser)} (in " in page.inner_text("p.done")
    assert "--quote digits-3f9a --iterations" in page.inner_text(".command code")
    page.get_by_role("slider", name="Iterations").fill("90")
    page.wait_for_selector("p.done", state="detached")
    assert "--quote" not in page.inner_text(".command code")


def test_a_quote_stays_while_admission_wants_to_be_asked_again(viewer: Viewer, admission: Admission) -> None:
    page = viewer.page
    admission.refusals = 2
    page.get_by_role("slider", name="Iterations").fill("300")
    page.wait_for_selector("text=Asking again, because of: tenant 'lab' asks for more than 10 quotes a second")
    assert number(page, "Earliest deadline")
    assert page.locator("text=No quote").count() == 0
    page.wait_for_selector(".numbers >> text=5m 00s")
    assert admission.asked[-3:] == [300, 300, 300]
    assert page.locator("text=Asking again").count() == 0


def test_a_slider_that_runs_asks_for_its_last_place_and_not_for_all(viewer: Viewer, admission: Admission) -> None:
    page = viewer.page
    page.get_by_role("slider", name="Iterations").evaluate(
        "slider => { for (let value = 101; value <= 240; value += 1) {"
        "  slider.value = value; slider.dispatchEvent(new Event('input', { bubbles: true })); } }"
    )
    page.wait_for_selector(".numbers >> text=4m 00s")
    assert admission.asked[-1] == 240
    assert len(admission.asked) < 10
    assert viewer.problems == []
