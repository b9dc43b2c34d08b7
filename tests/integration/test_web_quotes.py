"""Quotes of a live pool: their GPUs, cost and words, and a reservation that the named command takes."""

import asyncio

from testbed.command_line import CommandLinePool
from testbed.served_page import PageClient, served_page


async def test_a_quote_has_gpus_a_cost_and_a_command_that_takes_its_reservation(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    with served_page("--operator", "--price", "3.6", environment=cli.environment()) as link:
        client = await asyncio.to_thread(PageClient, link)
        while (await asyncio.to_thread(client.get, "/api/jobs/j1"))[0] != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        status, quote = await asyncio.to_thread(client.get, "/api/quote?like=j1&iterations=50")
        assert (status, quote["target"], quote["price"]) == (200, "line.py:Line", 3.6)
        held = sum((end_s - start_s) * num_gpus for start_s, end_s, num_gpus in quote["promised"])
        assert held > 0
        assert abs(held - quote["gpu_seconds"]) < 1e-3
        assert abs(quote["cost"] - quote["gpu_seconds"] / 1000) < 1e-9
        _, reserved = await asyncio.to_thread(client.post, "/api/quote?like=j1&iterations=50", {})
    taken = await cli.eflow("submit", quote["target"], "--quote", reserved["job_id"], "--iterations", "50")
    assert taken.status == 0, taken.err
    (job,) = (job for job in (await cli.eflow("jobs", "--json")).value if job["job_id"] == reserved["job_id"])
    assert job["deadline_s"] == reserved["deadline_s"]
