"""Each service goes to the next version and back while jobs arrive and train: no promise is broken.

The older version is a wheel of `two_versions.OLD_COMMIT`; the next one is the working tree.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from elasticflow.client.archive_ledger import archive
from elasticflow.client.ledger import ARCHIVES, write_ledger
from elasticflow.client.operator_decisions import configure
from elasticflow.sdk.packaging import package
from elasticflow.shared.messages.codec import READER_VERSION
from elasticflow.shared.messages.events import EpochBegan, PlanDecided
from elasticflow.shared.messages.export import LedgerRecord, read_export
from elasticflow.shared.messages.job_spec import JobClass
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.state.job import Phase
from elasticflow.simulator.pipeline.invariants import broken_promises
from elasticflow.simulator.replay.recorded_ledger import read_entries
from testbed.fault_evidence import assert_sound, decisions, iterations_trained
from testbed.real_pool import POOL, RunningPool, job, persistently
from tests.support.two_versions import (
    NEW,
    OLD_CODEC,
    OLD_COMMIT,
    OLD_WARM_UP,
    PoolOfVersions,
    Version,
    commit_is_there,
    installed_version,
    module_is_in,
    pool_of_versions,
)

ITERATIONS = 15
SUBMIT_EVERY_S = 0.5
CODE = package(f"{Path(__file__).parents[2]}/testbed/user_code/tiny_jobs.py:Steps")
OF_CODE = {"training_function": CODE.training_function, "code_digest": CODE.code_digest}


@pytest.fixture(scope="session")
def old_commit() -> str:
    if not commit_is_there(OLD_COMMIT):
        pytest.skip(
            f"commit {OLD_COMMIT[:12]}, the older version, is not in this checkout: run `git fetch --unshallow`"
        )
    return OLD_COMMIT


@pytest.fixture(scope="session")
def old(old_commit: str, tmp_path_factory: pytest.TempPathFactory) -> Version:
    return installed_version(old_commit, tmp_path_factory.mktemp("old-version"))


@pytest.mark.parametrize("module", [OLD_WARM_UP, OLD_CODEC])
def test_modules_of_the_older_version_are_named_as_it_has_them(old_commit: str, module: str) -> None:
    """The tests below run each night only, and would see it then."""
    assert module_is_in(old_commit, module)


@contextlib.asynccontextmanager
async def load(pool: RunningPool) -> AsyncIterator[list[str]]:
    """Submissions one after the other; the ids of all that were acknowledged so far. The last one is awaited."""
    job_ids, is_over = list[str](), asyncio.Event()

    async def submit() -> None:
        spec = job(max_iterations=ITERATIONS, **OF_CODE)
        while not is_over.is_set():
            job_id = f"job-{len(job_ids)}"
            await persistently(partial(pool.client.post, spec, job_id=job_id, code=CODE))
            job_ids.append(job_id)
            await asyncio.sleep(SUBMIT_EVERY_S)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(submit())
        yield job_ids
        is_over.set()


async def decided_after_now(pool: RunningPool, job_ids: list[str]) -> None:
    """Wait until a job that is acknowledged from now on is decided."""
    first = len(job_ids)
    await pool.when(
        lambda state: any(state.job(job_id) is not None for job_id in job_ids[first:]), "a later job is decided"
    )


async def allocated_after_now(pool: RunningPool) -> None:
    """Wait for a decision of the allocator that runs now, on a message that comes from now on."""
    now = (await pool.client.state()).sequence
    await pool.when(lambda state: state.allocation_based_on > now, "the allocator decides")


async def go_to(version: Version, versions: PoolOfVersions, job_ids: list[str]) -> None:
    """One process after the other; a job comes to its end afterwards."""
    for name in versions.names:
        await versions.replace(name, version)
        await decided_after_now(versions.pool, job_ids)
    await allocated_after_now(versions.pool)
    first = len(job_ids)
    await versions.pool.when(
        lambda state: any(job_id in state.ended_jobs for job_id in job_ids[first:]), "a later job has ended"
    )


async def ledger_of(pool: RunningPool) -> tuple[LedgerRecord, ...]:
    file = pool.data_dir / "ledger.eflow"
    await persistently(lambda: write_ledger(pool.client, file))
    with file.open("rb") as opened:
        return tuple(read_export(opened))


@pytest.mark.nightly("it builds two versions; simulation/test_pauses_and_upgrades.py upgrades simulated services")
async def test_each_service_goes_to_the_next_version_and_back_under_load(old: Version, tmp_path: Path) -> None:
    async with pool_of_versions(tmp_path, num_nodes=2) as versions:
        pool = versions.pool
        await asyncio.gather(*(versions.start(name, old) for name in versions.names))
        long_jobs = [
            await pool.client.post(job(max_iterations=500, **OF_CODE), job_id="long", code=CODE),
            await pool.client.post(job(JobClass.BEST_EFFORT, max_iterations=500, **OF_CODE), job_id="best-effort"),
        ]
        async with load(pool) as job_ids:
            await go_to(NEW, versions, job_ids)
            await go_to(old, versions, job_ids)
        state = await pool.ended([*long_jobs, *job_ids])
        await versions.stop_all()
        records = await ledger_of(pool)

    entries = tuple(read_entries(records))
    assert {decision.job_id for decision in decisions(entries)} == {*long_jobs, *job_ids}
    assert {state.ended_jobs[job_id].phase for job_id in (*long_jobs, *job_ids)} == {Phase.FINISHED}
    assert list(broken_promises(state)) == []
    assert_sound(entries, pool.data_dir)
    for job_id in (*long_jobs, *job_ids):
        assert state.ended_jobs[job_id].iteration == len(iterations_trained(pool.data_dir, job_id)), job_id
    writers = {
        entry.message.service + ("-new" if "-new" in record.message_id else "-old")
        for record, entry in zip(records, entries, strict=True)
        if isinstance(entry.message, PlanDecided) and entry.message.service != "operator"
    }
    planners = ("admission", "allocator", "placement")
    assert writers >= {f"{service}-{version}" for service in planners for version in ("old", "new")}


@pytest.mark.nightly("it builds two versions; unit/shared/runtime/service/test_host.py has messages of a newer version")
async def test_an_older_service_is_refused_by_a_pool_of_newer_messages(
    old: Version, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool has an epoch, and names the version that reads it. Its services of the next version go on.

    Without the messages before the epoch the older version finds a gap first, and ends as well.
    """
    old_version = old.constant(OLD_CODEC, "READER_VERSION")
    assert old_version < READER_VERSION
    async with pool_of_versions(tmp_path, num_nodes=1) as versions:
        pool = versions.pool
        await asyncio.gather(*(versions.start(name, NEW) for name in versions.names))
        await pool.client.post(job(JobClass.SLO, max_iterations=ITERATIONS, **OF_CODE), job_id="before", code=CODE)
        await pool.ended(["before"])
        folder = tmp_path / "archives"
        monkeypatch.setenv(ARCHIVES, str(folder))
        archive_all = partial(archive, pool.url, POOL, folder, SystemClock(), on_message=lambda done, of: None)
        await archive_all(delete=False)
        changes = {"minimum_reader_version": READER_VERSION}
        await configure(pool.url, POOL, None, SystemClock(), changes=changes)
        before = await ledger_of(pool)
        for name in versions.names:
            is_executor = name.startswith("executor")
            if is_executor:
                await versions.stop(name)  # one more of a node's name waits for the other
            status, said = await versions.refused(name, old)
            assert status != 0, name
            assert f"minimum_reader_version = {READER_VERSION}" in said, said[-2000:]
            assert f"{old_version}" in said
            if is_executor:
                await versions.start(name, NEW)
        await archive_all(delete=True)
        status, said = await versions.refused("admission", old)
        assert status != 0
        assert "messages are missing, or this is another ledger" in said, said[-2000:]
        await pool.client.post(job(JobClass.SLO, max_iterations=ITERATIONS, **OF_CODE), job_id="after", code=CODE)
        state = await pool.ended(["after"])
        records = await ledger_of(pool)
        await versions.stop_all()

    assert state.ended_jobs["after"].phase is Phase.FINISHED
    assert any(isinstance(entry.message, EpochBegan) for entry in read_entries(before))
    assert records[: len(before)] == before
    assert not any("-old" in record.message_id for record in records)
