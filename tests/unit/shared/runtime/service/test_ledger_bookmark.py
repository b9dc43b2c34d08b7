"""A machine knows when the ledger is not the one that was read there."""

from dataclasses import replace
from pathlib import Path

import pytest

from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.events import JobCancelled
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.runtime.process.folder_tree import jobs_with_files
from elasticflow.shared.runtime.service.ledger_bookmark import LedgerBookmark, older_ledger, unknown_jobs_problem
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from testbed.histories import NOW_S, History
from tests.support.job_files import keep_files
from tests.support.worker_events import admitted

POOL = "p"


async def ledger(*contents: bytes) -> MemoryBus:
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    for number, content in enumerate(contents):
        await bus.append(subjects.plan(POOL), content, message_id=f"{number}-{content!r}")
    return bus


async def newest(bus: MemoryBus) -> LedgerRecord:
    last = await bus.last_sequence(POOL)
    async for (record,) in bus.read(POOL, after_sequence=last - 1, up_to=last):
        return record
    raise AssertionError("an empty ledger")


def bookmark(folder: Path, reader: str = "node-0") -> LedgerBookmark:
    return LedgerBookmark.of_reader(folder, POOL, reader)


async def test_the_ledger_that_was_read_is_no_problem_whatever_follows(tmp_path: Path) -> None:
    bus = await ledger(b"1", b"2")
    bookmark(tmp_path).move(await newest(bus))
    assert bookmark(tmp_path).sequence == 2
    assert await older_ledger(bus, POOL, tmp_path) is None
    await bus.append(subjects.plan(POOL), b"3", message_id="3")
    assert await older_ledger(bus, POOL, tmp_path) is None


async def test_a_shorter_ledger_and_another_one_are_named_with_the_file(tmp_path: Path) -> None:
    bookmark(tmp_path).move(await newest(await ledger(b"1", b"2", b"3")))
    shorter = await older_ledger(await ledger(b"1", b"2"), POOL, tmp_path)
    assert shorter is not None
    assert "ends at message 2, but this machine has read it up to 3" in shorter
    assert f"delete {tmp_path / 'services' / 'ledger-p.node-0.json'}" in shorter
    another = await older_ledger(await ledger(b"1", b"2", b"other"), POOL, tmp_path)
    assert another is not None
    assert "has another message 3" in another


async def test_the_reader_that_has_read_most_counts(tmp_path: Path) -> None:
    bookmark(tmp_path, "node-1").move(await newest(await ledger(b"1", b"2", b"3")))
    bookmark(tmp_path, "node-2").move(await newest(await ledger(b"1")))
    assert "read it up to 3" in (await older_ledger(await ledger(b"1"), POOL, tmp_path) or "")


async def test_an_archived_message_cannot_be_compared(tmp_path: Path) -> None:
    bookmark(tmp_path).move(await newest(await ledger(b"1")))
    bus = await ledger(b"other", b"2", b"3")
    await bus.delete_ledger(POOL, up_to=2)
    assert await older_ledger(bus, POOL, tmp_path) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"sequence": "x", "message": ""}', '{"message": ""}'])
async def test_a_damaged_bookmark_is_none(tmp_path: Path, content: str) -> None:
    file = bookmark(tmp_path).file
    file.parent.mkdir()
    file.write_text(content)
    assert await older_ledger(await ledger(b"1"), POOL, tmp_path) is None
    bookmark(tmp_path).move(await newest(await ledger(b"1")))
    assert bookmark(tmp_path).sequence == 1


async def test_pools_do_not_share_bookmarks(tmp_path: Path) -> None:
    LedgerBookmark.of_reader(tmp_path, "other", "node-0").move(await newest(await ledger(b"1", b"2")))
    assert await older_ledger(await ledger(b"1"), POOL, tmp_path) is None


def unknown_jobs(state: PoolState, folder: Path) -> str | None:
    return unknown_jobs_problem(state, folder, jobs_with_files(folder))


def test_files_of_jobs_that_the_ledger_knows_and_records_without_files_are_no_problem(tmp_path: Path) -> None:
    state = History().then(admitted("known")).state
    assert unknown_jobs(state, tmp_path) is None
    keep_files(tmp_path, "known", state.live_jobs["known"].identity)
    keep_files(tmp_path, "gone", "0123456789abcdef", checkpoints=False)
    assert unknown_jobs(state, tmp_path) is None


def test_files_of_a_job_whose_id_a_later_one_took_are_known(tmp_path: Path) -> None:
    """Until the first worker of the later job moves them."""
    history = History().then(admitted("again"))
    keep_files(tmp_path, "again", history.state.live_jobs["again"].identity)
    for _ in range(3):
        job = history.state.live_jobs["again"]
        cancelled = JobCancelled(job_id="again", reason="", at_s=NOW_S)
        history.then(cancelled, replace(admitted("again"), replaces=job.identity))
        assert history.state.live_jobs["again"].identity != job.identity
        assert unknown_jobs(history.state, tmp_path) is None


def test_files_of_jobs_after_an_older_copy_of_nats_are_named(tmp_path: Path) -> None:
    state = History().then(admitted("again")).state
    for job_id in ("again", "lost"):
        keep_files(tmp_path, job_id, "0123456789abcdef")
    problem = unknown_jobs(state, tmp_path)
    assert problem is not None
    assert "files of 2 jobs that the ledger does not know (again, lost): NATS has older data" in problem


def test_a_ledger_that_has_forgotten_jobs_says_nothing(tmp_path: Path) -> None:
    keep_files(tmp_path, "lost", "0123456789abcdef")
    assert unknown_jobs(replace(PoolState(), num_forgotten=1), tmp_path) is None
