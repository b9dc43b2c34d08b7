"""Copies of checkpoints: whole or none, the newest two of a job, brought to a node that lacks them."""

import asyncio
import hashlib
import os
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from elasticflow.services.executor.processes import checkpoint_copies
from elasticflow.services.executor.processes.checkpoint_copies import (
    CheckpointCopies,
    CopiesUnreachable,
    Wanted,
    reads_first,
    wanted_copies,
)
from elasticflow.shared.messages.job_spec import TORCHRUN, ContinuedJob
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from testbed.histories import spec

OWN = Wanted("of-a", 10)


def assignment(rank: int = 0, known: int = 0, **changes) -> Assignment:
    plan = GenerationPlan(generation=3, world_size=2)
    made = Assignment(job_id="a", plan=plan, rank=rank, spec=spec(), checkpoint_dir="unused", job_identity="of-a")
    return replace(made, checkpoint_iteration=known, **changes)


@pytest.fixture
def node(tmp_path):
    """Copies of a new node, with a data folder of its own."""

    def made(name: str) -> CheckpointCopies:
        return CheckpointCopies((tmp_path / "store").as_uri(), tmp_path / name, SilentLog())

    return made


def write(tmp_path: Path, node: str, iteration: int, *, generation: int = 1, kind: str = "ckpt", content: str = ""):
    data = (content or f"{generation} {iteration} {kind}").encode()
    part = "p00000-" if kind == "part" else ""
    name = f"g{generation:010d}-i{iteration:014d}-{part}{hashlib.sha256(data).hexdigest()}.{kind}"
    file = tmp_path / node / "checkpoints" / "a" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*")) if folder.exists() else []


async def test_another_node_gets_the_newest_with_its_parts(node, tmp_path):
    files = [write(tmp_path, "n1", 10, kind="part"), write(tmp_path, "n1", 10)]
    assert await node("n1").store("lab", assignment(), 10) == ""
    other = tmp_path / "n2" / "checkpoints" / "a"
    await node("n2").bring("lab", assignment(known=10), [OWN], within_s=1.0)
    assert names(other) == sorted(file.name for file in files)
    assert {path.read_bytes() for path in other.iterdir()} == {file.read_bytes() for file in files}


async def test_two_of_a_job_are_kept_and_a_newer_generation_counts_first(node, tmp_path):
    for generation, iteration in [(1, 10), (1, 20), (2, 15), (2, 30)]:
        write(tmp_path, "n1", iteration, generation=generation)
        await node("n1").store("lab", assignment(), iteration)
    kept = names(tmp_path / "store" / "lab" / "of-a")
    assert [name[:27] for name in kept] == ["g0000000002-i00000000000015", "g0000000002-i00000000000030"]


async def test_a_copy_that_only_seems_newer_takes_the_place_of_none(node, tmp_path):
    for iteration in (90, 91):
        seems_newer = write(tmp_path, "n1", iteration, generation=9)
        await node("n1").store("lab", assignment(), iteration)
        seems_newer.unlink()
    for iteration in (10, 20, 30):
        write(tmp_path, "n1", iteration)
        await node("n1").store("lab", assignment(), iteration)
    kept = [name[11:27] for name in names(tmp_path / "store" / "lab" / "of-a")]
    assert kept == [f"-i{iteration:014d}" for iteration in (20, 30, 90, 91)]


async def test_a_damaged_copy_is_passed_over_for_an_older_one(node, tmp_path):
    older = write(tmp_path, "n1", 10)
    newer = write(tmp_path, "n1", 20)
    for iteration in (10, 20):
        await node("n1").store("lab", assignment(), iteration)
    (tmp_path / "store" / "lab" / "of-a" / newer.name).write_bytes(b"damaged")
    await node("n2").bring("lab", assignment(known=10), [OWN], within_s=1.0)
    assert names(tmp_path / "n2" / "checkpoints" / "a") == [older.name]


async def test_a_damaged_or_linked_file_of_the_job_gets_no_copy(node, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_copies, "_GIVE_UP_S", 0.0)
    damaged = write(tmp_path, "n1", 10)
    damaged.write_bytes(b"damaged")
    assert "does not match its name" in await node("n1").store("lab", assignment(), 10)
    secret = tmp_path / "secret"
    secret.write_text("of the node")
    linked = write(tmp_path, "n1", 20)
    linked.unlink()
    linked.symlink_to(secret)
    assert await node("n1").store("lab", assignment(), 20) == "it is not on the disk", "a link is no checkpoint"
    assert names(tmp_path / "store" / "lab" / "of-a") == []


async def test_workers_of_one_node_that_want_the_same_copy_wait_for_each_other(node, tmp_path, monkeypatch):
    """Each worker of a sharded optimizer wants it; another one's half of a file must not look damaged."""
    files = [write(tmp_path, "n1", 10, kind="part"), write(tmp_path, "n1", 10)]
    await node("n1").store("lab", assignment(), 10)
    copies, begun = node("n2"), threading.Barrier(2)
    read, reads = copies._folder.read, list[str]()

    def slow_read(path, out) -> None:
        reads.append(path)
        with suppress(threading.BrokenBarrierError):
            begun.wait(timeout=0.2)
        read(path, out)

    monkeypatch.setattr(copies._folder, "read", slow_read)
    workers = [copies.bring("lab", assignment(rank, known=10), [OWN], within_s=1.0) for rank in range(2)]
    await asyncio.gather(*workers)
    assert len(reads) == len(files), "each file is read once"
    assert names(tmp_path / "n2" / "checkpoints" / "a") == sorted(file.name for file in files)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
async def test_a_copy_belongs_to_who_has_the_folder(node, tmp_path):
    """An executor with rights over all users, whose own files no other one may read, has workers without rights."""
    write(tmp_path, "n1", 10)
    await node("n1").store("lab", assignment(), 10)
    folder = tmp_path / "n2" / "checkpoints" / "a"
    folder.mkdir(parents=True)
    os.chown(folder, 12_345, 12_346)
    await node("n2").bring("lab", assignment(known=10), [OWN], within_s=1.0)
    assert {(file.stat().st_uid, file.stat().st_gid) for file in folder.iterdir()} == {(12_345, 12_346)}


async def test_a_checkpoint_that_newer_ones_have_replaced_is_told_behind_the_copy_of_one(node, tmp_path):
    """The store may be slower than the job. What is told is in the store, or something newer of its generation."""
    for iteration in (30, 40):
        write(tmp_path, "n1", iteration)
    assert await node("n1").store("lab", assignment(), 10) == ""
    await node("n2").bring("lab", assignment(known=10), [OWN], within_s=1.0)
    assert [name[:27] for name in names(tmp_path / "n2" / "checkpoints" / "a")] == ["g0000000001-i00000000000040"]
    assert "is not on the disk" in await node("n1").store("lab", assignment(), 50)


async def test_an_older_copy_is_better_than_none_if_the_one_that_the_pool_knows_is_damaged(node, tmp_path):
    older, newer = write(tmp_path, "n1", 10), write(tmp_path, "n1", 20)
    for iteration in (10, 20):
        await node("n1").store("lab", assignment(), iteration)
    (tmp_path / "store" / "lab" / "of-a" / newer.name).write_bytes(b"damaged")
    known = assignment(known=20)
    await node("n2").bring("lab", known, wanted_copies(known, None), within_s=1.0)
    assert names(tmp_path / "n2" / "checkpoints" / "a") == [older.name]
    still_older = write(tmp_path, "n3", 5)
    newer_here = write(tmp_path, "n4", 12)
    for name in ("n3", "n4"):
        await node(name).bring("lab", known, wanted_copies(known, None), within_s=1.0)
    assert names(tmp_path / "n3" / "checkpoints" / "a") == sorted([still_older.name, older.name])
    assert names(tmp_path / "n4" / "checkpoints" / "a") == [newer_here.name]


async def test_what_a_worker_would_begin_from_gets_a_copy_if_the_pool_does_not_know_it(node, tmp_path):
    """Its copy may have failed; the start from it makes it count, and its node may be lost."""
    older, newest, damaged = (write(tmp_path, "n1", iteration) for iteration in (10, 20, 30))
    damaged.write_bytes(b"damaged")
    await node("n1").store("lab", assignment(), 10)
    await node("n1").store_newer("lab", assignment(known=10), 10, within_s=0.0)
    there = tmp_path / "store" / "lab" / "of-a"
    assert names(there) == [older.name, newest.name]
    (there / newest.name).unlink()
    await node("n1").store_newer("lab", assignment(known=30), 30, within_s=0.0)
    assert names(there) == [older.name], "what the pool knows has a copy"


async def test_what_is_here_or_older_than_known_is_not_brought(node, tmp_path):
    write(tmp_path, "n1", 10)
    await node("n1").store("lab", assignment(), 10)
    here = write(tmp_path, "n2", 12)
    await node("n2").bring("lab", assignment(known=10), [OWN], within_s=1.0)
    assert names(tmp_path / "n2" / "checkpoints" / "a") == [here.name]
    await node("n3").bring("lab", assignment(known=11), [Wanted("of-a", 11)], within_s=1.0)
    await node("n4").bring("other", assignment(known=10), [OWN], within_s=1.0)
    for name in ("n3", "n4"):
        assert names(tmp_path / name / "checkpoints" / "a") == []


async def test_an_outage_is_waited_for_and_then_told(node, tmp_path, monkeypatch):
    write(tmp_path, "n1", 10)
    copies, left = node("n1"), [2]
    write_there = copies._folder.write

    def fails(*arguments) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise ConnectionError("the store is away")
        write_there(*arguments)

    monkeypatch.setattr(copies._folder, "write", fails)
    monkeypatch.setattr(checkpoint_copies, "_FIRST_RETRY_S", 0.01)
    assert await copies.store("lab", assignment(), 10) == ""
    left[0] = 10**6
    monkeypatch.setattr(checkpoint_copies, "_GIVE_UP_S", 0.0)
    write(tmp_path, "n1", 20)
    assert await copies.store("lab", assignment(), 20) == "ConnectionError: the store is away"
    monkeypatch.setattr(copies._folder, "files", fails)
    with pytest.raises(CopiesUnreachable, match="the store is away"):
        await copies.bring("lab", assignment(known=20), [Wanted("of-a", 21)], within_s=0.0)


CONTINUED = ContinuedJob(job_id="b", identity="of-b", iteration=7, earlier=("of-c",))


@pytest.mark.parametrize(
    ("given", "continued", "identities"),
    [
        (assignment(known=5), None, ["of-a"]),
        (assignment(known=0), None, []),
        (assignment(rank=1, known=5), None, []),
        (assignment(rank=1, known=5, spec=replace(spec(), shard_optimizer=True)), None, ["of-a"]),
        (assignment(known=5, purpose="profile"), None, []),
        (assignment(known=5, spec=replace(spec(), training_function=f"train:{TORCHRUN}")), None, []),
        (assignment(rank=1), CONTINUED, list(CONTINUED.writers)),
    ],
    ids=["rank 0", "no checkpoint", "rank 1", "a part of the optimizer", "profile", "torchrun", "continues"],
)
def test_only_workers_that_read_a_checkpoint_want_a_copy(given, continued, identities):
    assert [each.identity for each in wanted_copies(given, continued)] == identities


def test_later_work_of_an_earlier_job_is_none_of_the_job_that_is_continued():
    wanted = wanted_copies(assignment(), CONTINUED)
    assert wanted == [Wanted("of-b", 7, is_exact=False), Wanted("of-c", 7, is_exact=True)]


@pytest.mark.parametrize(
    ("given", "reads"),
    [
        (assignment(), True),
        (assignment(rank=1), False),
        (assignment(purpose="profile"), False),
        (assignment(spec=replace(spec(), training_function=f"train:{TORCHRUN}")), False),
    ],
    ids=["rank 0", "rank 1", "profile", "torchrun"],
)
def test_the_generation_begins_from_what_rank_0_reads(given, reads):
    assert reads_first(given) is reads
