"""What a viewer sees: the first view, an event that arrives, and frames while the lanes move."""

import asyncio
from collections.abc import Iterator

from benchmarks.page.served_pool import ServedPool
from benchmarks.page.times import others, p95, spread
from benchmarks.report import Measured, Row

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
