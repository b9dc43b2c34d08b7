"""A job that floods its log while a browser follows it: how old the newest line on the screen is, and what it costs."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.page.served_pool import browser_page, page_of_jobs, server_of_page, used_s
from benchmarks.page.times import others, p95, spread
from benchmarks.report import Measured, Row

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
