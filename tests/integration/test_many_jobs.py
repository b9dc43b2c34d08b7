"""A pool that has had ten thousand jobs: the command line, the page, and viewers of the page that do not read."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import psutil

from elasticflow.shared.messages import events
from elasticflow.web.page_values import MAX_JOBS
from testbed.command_line import CommandLinePool
from testbed.served_page import PageClient, in_thread, served_page
from tests.support.worker_events import admitted

NUM_JOBS, AT_ONCE = 10_000, 500
NUM_STALLED = 60
# Of the server. If it kept for each stalled viewer what the others get, that alone would be 60 times 7 MB.
MAX_GROWTH_BYTES = 300 << 20


async def test_ten_thousand_jobs_are_listed_and_viewers_that_do_not_read_are_skipped(cli: CommandLinePool) -> None:
    with served_page(environment=cli.environment()) as link, contextlib.ExitStack() as stack:
        client = await asyncio.to_thread(PageClient, link)
        (server,) = [child for child in psutil.Process().children() if "ui" in child.cmdline()]
        for _ in range(NUM_STALLED):
            stack.enter_context(contextlib.closing(client.stalled()))
        changes = client.stream()
        await in_thread(changes, "message")
        before = server.memory_info().rss
        num_bytes = await _add_jobs(cli, changes)
        assert num_bytes > 5_000_000
        assert server.memory_info().rss - before < MAX_GROWTH_BYTES
        whole = await in_thread(client.stream(), "message")
        assert (len(whole["jobs"]), whole["num_jobs"]) == (MAX_JOBS, NUM_JOBS)
        assert (await asyncio.to_thread(client.get, "/api/jobs/job-00000"))[0] == 200, "left out, but not forgotten"
    listed = await cli.eflow("jobs", "--all", "--json")
    assert (listed.status, len(listed.value)) == (0, NUM_JOBS)
    table = await cli.eflow("jobs", "--all")
    assert (table.status, table.out.count("job-")) == (0, NUM_JOBS)


async def _add_jobs(cli: CommandLinePool, changes: Iterator[tuple[str, Any]]) -> int:
    """Jobs that end at once. Wait, each time, until a viewer knows them; return about how many bytes it was sent."""
    num_bytes = 0
    for first in range(0, NUM_JOBS, AT_ONCE):
        names = [f"job-{number:05d}" for number in range(first, first + AT_ONCE)]
        jobs = [admitted(name, at_s=cli.now_s, deadline_s=cli.now_s + 100.0) for name in names]
        ends = [events.JobCancelled(job_id=name, reason="", at_s=cli.now_s) for name in names]
        await cli.decide("admission", *jobs, *ends)
        known: set[str] = set()
        while names[-1] not in known:
            update = await in_thread(changes, "message")
            known |= {row["job_id"] for row in update["jobs"]}
            num_bytes += len(str(update))
    return num_bytes
