"""A browser for all tests of the page: Debian's Chromium, driven by Playwright. Without one they are skipped."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from testbed.page_ledger import page_history, write_export
from testbed.served_page import served_page

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright: `make page`")
VIEWPORT = {"width": 1280, "height": 900}
PATIENCE_MS = 20_000
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run")  # fmt: skip


@dataclass
class Viewer:
    """A browser that has opened a link. problems: what its console said, and what it could not load."""

    page: Any
    origin: str
    problems: list[str] = field(default_factory=list)

    def go(self, address: str) -> None:
        """Show the page at this address, as "job/digits"."""
        self.page.goto(f"{self.origin}/#/{address}")
        self.page.wait_for_selector("main h1", state="attached")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("the browser tests need Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def recorded_page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """The page of a recorded ledger, opened once."""
    file = tmp_path_factory.mktemp("ledger") / "run.ledger"
    write_export(page_history(), file)
    with served_page(str(file)) as link, opened(browser, link) as viewer:
        yield viewer


@pytest.fixture
def viewer(browser: Any, recorded_page: Viewer) -> Iterator[Viewer]:
    """A fresh browser with the session of the recorded page."""
    context = browser.new_context(viewport=VIEWPORT, storage_state=recorded_page.page.context.storage_state())
    viewer = watched(context.new_page(), recorded_page.origin)
    viewer.go("")
    viewer.page.wait_for_selector(".numbers >> text=of 8")  # the page has the ledger
    yield viewer
    context.close()


@contextmanager
def opened(browser: Any, link: str) -> Iterator[Viewer]:
    """A browser that opens a link."""
    context = browser.new_context(viewport=VIEWPORT)
    viewer = watched(context.new_page(), link.partition("/open")[0])
    viewer.page.goto(link)
    viewer.page.wait_for_selector("header nav")
    yield viewer
    context.close()


def watched(page: Any, origin: str) -> Viewer:
    viewer = Viewer(page, origin)
    page.set_default_timeout(PATIENCE_MS)
    page.on("console", lambda said: viewer.problems.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: viewer.problems.append(str(error)))
    return viewer
