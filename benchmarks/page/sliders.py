"""Times from an input on a slider to the frame that shows its result: the scrubber of the replay, and a quote."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from playwright.async_api import Page  # pyright: ignore[reportMissingImports]

from benchmarks.page.served_pool import browser_page, page_of_jobs
from benchmarks.page.times import others, p95, spread
from benchmarks.report import Measured, Row
from testbed.histories import History
from testbed.page_ledger import write_export
from testbed.served_page import served_page

# One step: sets a slider, and resolves with the milliseconds until its result has changed and is painted; null if
# nothing changes, because no message was stored between the two times.
_STEP = """([label, value, shown]) => new Promise(resolve => {
    const slider = document.querySelector(`input[type=range][aria-label="${label}"]`);
    const read = () => shown === 'message' ? /message (\\d+) of/.exec(document.body.textContent)?.[1]
        : document.querySelector('dl.quote')?.textContent;
    const before = read(), began = performance.now();
    slider.value = value;
    slider.dispatchEvent(new Event('input', {bubbles: true}));
    const look = () => performance.now() - began > 10_000 ? resolve(null) : read() !== before
        ? requestAnimationFrame(() => resolve(performance.now() - began)) : requestAnimationFrame(look);
    look();
})"""
_STRIDE = 389  # of jumps over the slider's thousand steps: no two near each other follow


async def measure_scrubbing(history: History, *, num_steps: int) -> Measured:
    """Measure an export: its messages are as far apart in time as those of a pool, which the appended ones are not."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "large.ledger"
        write_export(history, file)
        with served_page(str(file)) as link:
            async with browser_page(link) as page:
                await page.wait_for_selector("text=Reading the ledger")
                await page.wait_for_selector("text=Reading the ledger", state="detached")
                await page.goto(f"{link.partition('/open')[0]}/#/replay")
                await page.wait_for_selector("text=/message [1-9]\\d* of/")
                return await _scrubbed(page, num_steps)


async def _scrubbed(page: Page, num_steps: int) -> Measured:
    middle = 500
    values_of = {
        "forwards": range(middle, middle + num_steps),
        "backwards": range(middle + num_steps - 1, middle, -1),
        "jumps": [number * _STRIDE % 1000 for number in range(1, num_steps // 4)],
    }
    measured: Measured = {}
    for name, values in values_of.items():
        await _step_s(page, 0)
        await _step_s(page, values[0])
        steps = [await _step_s(page, value) for value in values[1:]]
        measured[name] = spread([step_s for step_s in steps if step_s is not None])
    return measured


def scrubbing_rows(measured: Measured) -> Iterator[Row]:
    for name, what in (("forwards", "drawn forwards"), ("backwards", "drawn backwards"), ("jumps", "jumps anywhere")):
        one = measured[name]
        yield Row(f"scrub step of the large ledger, {what}, p95", p95(one), "<= 50 ms", others(one))


async def measure_quotes(*, num_steps: int) -> Measured:
    """A pool with a real admission and eight GPUs, of which two jobs hold promises."""
    async with page_of_jobs("one", "two") as (_, link), browser_page(link) as page:
        await page.goto(f"{link.partition('/open')[0]}/#/quote")
        await page.wait_for_selector("dl.quote")
        steps_ms = [
            await page.evaluate(_STEP, ["Iterations", 200 + 3 * number, "quote"]) for number in range(num_steps)
        ]
    return spread([each_ms / 1e3 for each_ms in steps_ms])


def quote_rows(measured: Measured) -> Iterator[Row]:
    yield Row("quote slider, p95", p95(measured), "<= 100 ms", f"{others(measured)}; the page waits 20 ms of it")


async def _step_s(page: Page, value: int) -> float | None:
    taken_ms: float | None = await page.evaluate(_STEP, ["Time of the replay", value, "message"])
    return None if taken_ms is None else taken_ms / 1e3
