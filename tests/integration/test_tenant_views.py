"""The monitor as a process on a real nats-server: its views are right after it was killed at any moment."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

from elasticflow.history.job_history import EventsInWords
from elasticflow.history.stored_history import StoredHistory
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.service.ledger_encoding import read_message
from elasticflow.shared.state.tenant_view import AsOf, StoredView, TenantPart, decode_small, tenant_parts
from testbed.command_line import POOL, WAIT_S, CommandLinePool

BUCKET = streams.view_bucket(POOL)
TENANTS = ("acme", "globex")


@contextlib.asynccontextmanager
async def running_monitor(cli: CommandLinePool, instance: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Killed at the end, if it has not ended by then."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "elasticflow.services.monitor",
        env=cli.environment(EF_INSTANCE=instance, EF_DIE_WITH_PARENT="1"),
        stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def holds_to(cli: CommandLinePool) -> int:
    value = await cli.bus.get_value(BUCKET, streams.AS_OF_KEY)
    return 0 if value is None else decode_small(AsOf, value.data).sequence


async def until_views_hold_to(cli: CommandLinePool, sequence: int) -> None:
    async with asyncio.timeout(3 * WAIT_S):
        while await holds_to(cli) < sequence:  # noqa: ASYNC110 - a key can only be polled
            await asyncio.sleep(0.02)


async def words_of(cli: CommandLinePool) -> tuple[EventsInWords, dict[str, list[str]]]:
    """The ledger, folded, and the sentences that a tenant may read of each job; without reports of progress."""
    words, said = EventsInWords(for_tenants=True), dict[str, list[str]]()
    last = await cli.bus.last_sequence(POOL)
    async with contextlib.aclosing(cli.bus.read(POOL, after_sequence=0, up_to=last)) as batches:
        async for batch in batches:
            for stored in batch:
                for name, entry, _ in words.fold(stored.sequence, stored.stored_at_s, read_message(stored)):
                    if not entry.is_report:
                        said.setdefault(name, []).append(entry.text)
    return words, said


async def stored_texts(cli: CommandLinePool, tenant: str, job_id: str) -> list[str]:
    value = await cli.bus.get_value(BUCKET, streams.history_key(tenant, job_id))
    with contextlib.suppress(Undecodable):
        entries = () if value is None else StoredHistory.decode(value.data).entries
        return [entry.text for entry in entries if not entry.is_report]
    raise AssertionError("an unreadable history")


async def test_views_are_right_after_each_kill_of_the_monitor(cli: CommandLinePool) -> None:
    jobs = [(tenant, f"{tenant}-{number}") for number in range(2) for tenant in TENANTS]
    for number, (tenant, job_id) in enumerate(jobs):
        async with running_monitor(cli, f"monitor-{number}"):
            submitted = await cli.eflow(
                "submit", "line.py", "--deadline", "1h", "--name", job_id, "--tenant", tenant, EF_TENANT=tenant
            )
            assert submitted.status == 0, submitted.err
            await cli.place(job_id, f"node-{number % 2}:{number // 2}")
            await until_views_hold_to(cli, (await cli.bus.last_sequence(POOL)) - 1)
            changing = asyncio.create_task(cli.train(job_id, iteration=number + 1))
        await changing
    async with running_monitor(cli, "last"):
        words, said = await words_of(cli)
        await until_views_hold_to(cli, words.state.sequence)
        parts = tenant_parts(words.state)
        for tenant in TENANTS:
            value = await cli.bus.get_value(BUCKET, streams.tenant_view_key(tenant))
            assert value is not None
            assert StoredView.decode(value.data).part(TenantPart) == parts[tenant]
        async with asyncio.timeout(WAIT_S):
            for tenant, job_id in jobs:
                while await stored_texts(cli, tenant, job_id) != said[job_id]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
