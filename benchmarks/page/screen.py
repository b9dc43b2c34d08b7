"""What a viewer sees, and when: views and events, a log, and sliders.

The job of the log floods it while a browser follows: how old the newest line on the screen is, and what that costs. The
sliders are the scrubber of the replay, and a quote: times from an input to the frame that shows its result.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Page  # pyright: ignore[reportMissingImports]

from benchmarks.page.served_pool import ServedPool, browser_page, page_of_jobs, server_of_page, used_s
from benchmarks.report import Measured, Row
from testbed.histories import History
from testbed.page_ledger import write_export
from testbed.served_page import served_page


def spread(times_s: Sequence[float]) -> Measured:
    """Their median, 95th percentile and maximum, in milliseconds."""
    ordered = sorted(times_s)
    at = [ordered[min(len(ordered) - 1, int(part * len(ordered)))] for part in (0.5, 0.95, 1.0)]
    return dict(zip(("p50_ms", "p95_ms", "max_ms"), (round(1e3 * each_s, 1) for each_s in at), strict=True)) | {
        "count": len(ordered)
    }


def p95(measured: Measured) -> str:
    return f"{measured['p95_ms']:.0f} ms"


def others(measured: Measured) -> str:
    return f"p50 {measured['p50_ms']:.0f} ms, worst of {measured['count']} {measured['max_ms']:.0f} ms"


# --- the first view, an event that arrives, frames while the lanes move --------------------------------


# Resolves with the time at which the browser has painted a sentence with this name.
_PAINTED = """name => new Promise(resolve => {
    const look = () => document.querySelector('.feed')?.textContent.includes(name + ' joined')
        ? requestAnimationFrame(() => resolve(Date.now() / 1000)) : requestAnimationFrame(look);
    look();
})"""
# Resolves with milliseconds from the start of the navigation to the frame after numbers, lanes and decisions.
_FIRST_VIEW = """() => new Promise(resolve => {
    const isThere = () => document.querySelector('.feed li') && document.querySelector('.lanes canvas')?.width > 300
        && !document.querySelector('.numbers dd')?.textContent.startsWith('0');
    const look = () => isThere()
        ? requestAnimationFrame(() => resolve(performance.now())) : requestAnimationFrame(look);
    look();
})"""
# Zooms with the wheel, moves with keys, and resolves with the milliseconds between frames.
_FRAMES = """({seconds, moves}) => new Promise(resolve => {
    const lanes = document.querySelector('.lanes'), canvas = lanes?.querySelector('canvas');
    const gaps = [], began = performance.now();
    let last = began, count = 0;
    const frame = now => {
        if (count) gaps.push(now - last);
        last = now;
        count += 1;
        if (now - began > seconds * 1000) return resolve(gaps);
        if (moves && count % 2) {
            const deltaY = Math.floor(count / 40) % 2 ? 100 : -100;
            canvas.dispatchEvent(new WheelEvent('wheel',
                {deltaY, ctrlKey: true, bubbles: true, cancelable: true, clientX: 700, clientY: 400}));
        } else if (moves) {
            const key = Math.floor(count / 60) % 2 ? 'ArrowLeft' : 'ArrowRight';
            lanes.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
        }
        requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
})"""
_EVENT_SPACING_S = 0.25


async def measure_drawing(pool: ServedPool, *, num_views: int, num_events: int, seconds: float) -> Measured:
    views_s = [await _first_view_s(pool) for _ in range(num_views)]
    delays_s = [await _delay_s(pool) for _ in range(num_events)]
    frames = await _frames(pool, seconds, moves=True)
    await pool.page.goto("about:blank")
    empty = _rate(await pool.page.evaluate(_FRAMES, {"seconds": seconds, "moves": False}))
    return {
        "first_view": spread(views_s),
        "event_to_pixel": spread(delays_s),
        "frames": frames,
        "frames_of_an_empty_page": empty,
    }


def drawing_rows(measured: Measured) -> Iterator[Row]:
    event, view = measured["event_to_pixel"], measured["first_view"]
    yield Row("event in the ledger to pixel, p95", p95(event), "<= 250 ms", others(event))
    yield Row("first view of the large ledger, p95", p95(view), "<= 1,000 ms", others(view))
    frames, empty = measured["frames"], measured["frames_of_an_empty_page"]
    beside = f"p95 {frames['p95_ms']:.0f} ms between frames; an empty page {empty['per_s']:.1f}/s"
    yield Row(
        "frames with 1,000 live jobs, zoomed and moved while events arrive", f"{frames['per_s']:.1f}/s", "60/s", beside
    )


async def _first_view_s(pool: ServedPool) -> float:
    await pool.page.goto("about:blank")
    await pool.page.goto(pool.origin, wait_until="commit")
    return await pool.page.evaluate(_FIRST_VIEW) / 1e3


async def _delay_s(pool: ServedPool) -> float:
    """The time from the append of a node that joins to its sentence on the screen. The browser's clock is the same."""
    name, began_s = await pool.add_node()
    painted_s: float = await pool.page.evaluate(_PAINTED, name)
    return painted_s - began_s


async def _frames(pool: ServedPool, seconds: float, *, moves: bool) -> Measured:
    await pool.go("")
    await pool.page.wait_for_selector(".feed li")

    async def add_nodes() -> None:
        while True:
            await pool.add_node()
            await asyncio.sleep(_EVENT_SPACING_S)

    adding = asyncio.create_task(add_nodes())
    try:
        return _rate(await pool.page.evaluate(_FRAMES, {"seconds": seconds, "moves": moves}))
    finally:
        adding.cancel()
        await asyncio.wait([adding])


def _rate(gaps_ms: list[float]) -> Measured:
    return spread([gap_ms / 1e3 for gap_ms in gaps_ms]) | {"per_s": round(1e3 * len(gaps_ms) / sum(gaps_ms), 1)}


# --- a log that a job floods ---------------------------------------------------------------------------


LINES_PER_S = 100_000
_JOB = "floods"
_PARTS_PER_S = 100
# Writes lines with their time, so many a second, until it is killed.
_FLOOD = """
import sys, time
path, lines_per_s, parts_per_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path, "a") as file:
    begun, number = time.monotonic(), 0
    while True:
        number += 1
        now = f"step 123456 of 200000, loss 0.12345678, at {time.time():.3f}\\n"
        file.write(now * (lines_per_s // parts_per_s))
        file.flush()
        time.sleep(max(0.0, begun + number / parts_per_s - time.monotonic()))
"""
# Resolves with the seconds from the writing of the newest line on the screen to now, ten times a second, and frames/s.
_FOLLOW = """seconds => new Promise(resolve => {
    const ages = [], began = performance.now();
    let frames = 0, looked = 0;
    const frame = now => {
        frames += 1;
        if (now - looked > 100) {
            looked = now;
            const line = document.querySelector('pre.logs')?.textContent.slice(-200).match(/at (\\d+\\.\\d+)\\n*$/);
            if (line) ages.push(Date.now() / 1000 - Number(line[1]));
        }
        if (now - began < seconds * 1000) return requestAnimationFrame(frame);
        resolve({ages, frames_per_s: 1000 * frames / (now - began)});
    };
    requestAnimationFrame(frame);
})"""


async def measure_logs(*, seconds: float) -> Measured:
    async with page_of_jobs(_JOB) as (cli, link):
        await cli.place(_JOB, "node-0:0", "node-0:1")
        file, server = cli.folder / "logs" / _JOB / "g1-r0.log", server_of_page()
        file.parent.mkdir(parents=True)
        async with browser_page(link) as page, _flood(file):
            await page.goto(f"{link.partition('/open')[0]}/#/job/{_JOB}")
            await page.wait_for_selector("pre.logs >> text=step")
            await asyncio.sleep(1.0)
            before_s = used_s(server)
            followed = await page.evaluate(_FOLLOW, seconds)
            share, rss_mb = (used_s(server) - before_s) / seconds, server.memory_info().rss / 1e6
        log_mb = file.stat().st_size / 1e6
    return spread(followed["ages"]) | {
        "lines_per_s": LINES_PER_S,
        "frames_per_s": round(followed["frames_per_s"], 1),
        "share_of_a_core": share,
        "rss_mb": rss_mb,
        "log_mb": log_mb,
    }


def logs_rows(measured: Measured) -> Iterator[Row]:
    flood = f"{measured['lines_per_s']:,} lines a second"
    yield Row(f"newest line of a log with {flood} to pixel, p95", p95(measured), "", others(measured))
    yield Row("frames while it is followed", f"{measured['frames_per_s']:.0f}/s", "")
    server = f"{measured['rss_mb']:.0f} MB, with a log of {measured['log_mb']:.0f} MB"
    yield Row("the server, while it is followed", f"{measured['share_of_a_core']:.0%} of a core", "", server)


@asynccontextmanager
async def _flood(file: Path) -> AsyncIterator[None]:
    arguments = (_FLOOD, str(file), str(LINES_PER_S), str(_PARTS_PER_S))
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", *arguments)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


# --- sliders -------------------------------------------------------------------------------------------


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
