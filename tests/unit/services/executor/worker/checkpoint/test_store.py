"""Checkpoints are complete or absent, and the newest generation comes first."""

import errno
import hashlib
import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore, Superseded
from elasticflow.services.executor.worker.engine.trainer import ShardedCheckpoints


def state(iteration: int) -> dict:
    return {"iteration": iteration, "metrics": {"loss": 0.5}, "model": {"weight": torch.arange(4.0)}}


def newest_iteration(store: CheckpointStore, **more) -> int | None:
    newest = store.newest(**more)
    return None if newest is None else newest["iteration"]


def test_no_folder_is_no_checkpoint(tmp_path):
    assert CheckpointStore(tmp_path / "none", generation=1).newest() is None


def test_state_comes_back_and_two_are_kept(tmp_path):
    store = CheckpointStore(tmp_path, generation=1)
    for iteration in (10, 20, 30):
        store.save(iteration, state(iteration))
    newest = store.newest()
    assert newest is not None
    assert torch.equal(newest["model"]["weight"], torch.arange(4.0))
    assert newest_iteration(store) == 30
    assert newest_iteration(store, at_least=30) == 30
    assert newest_iteration(store, at_least=31) is None
    assert len(list(tmp_path.iterdir())) == 2


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    synced = []

    def fsync(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")), len(list(tmp_path.glob("*.ckpt")))))

    monkeypatch.setattr(os, "fsync", fsync)
    written = CheckpointStore(tmp_path, generation=1).save(10, state(10))
    (of_content, of_folder) = synced
    assert (of_content[0].suffix, of_content[1]) == (".unfinished", 0)
    assert of_folder == (tmp_path, 1)
    assert list(tmp_path.iterdir()) == [written.file]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: data + b"x"])
def test_torn_checkpoint_is_passed_over(tmp_path, damage):
    store = CheckpointStore(tmp_path, generation=1)
    store.save(10, state(10))
    store.save(20, state(20))
    newest = max(tmp_path.iterdir())
    newest.write_bytes(damage(newest.read_bytes()))
    assert newest_iteration(store) == 10


def test_unfinished_file_is_no_checkpoint_and_is_deleted_by_the_next_generation(tmp_path):
    unfinished = tmp_path / f"g0000000001-i00000000000010-{'0' * 64}.4711.unfinished"
    unfinished.write_bytes(b"half of it")
    first, second = (CheckpointStore(tmp_path, generation=generation) for generation in (1, 2))
    assert first.newest() is None
    first.save(20, state(20))
    assert unfinished.exists()
    second.save(30, state(30))
    assert not unfinished.exists()


def test_newer_generation_comes_first_even_with_fewer_iterations(tmp_path):
    CheckpointStore(tmp_path, generation=1).save(500, state(500))
    newer = CheckpointStore(tmp_path, generation=2)
    newer.save(300, state(300))
    assert newest_iteration(newer) == 300


def test_files_that_seem_to_be_newer_cost_no_checkpoint_that_is_written(tmp_path):
    """A name proves nothing: not of checkpoints, nor of their parts."""
    for number in range(2):
        (tmp_path / f"g0000000001-i{10**14 - 1}-{str(number) * 64}.ckpt").touch()
    store = CheckpointStore(tmp_path, generation=1)
    store.parts.write(40, 1, part(range(2)))  # of a checkpoint that is not yet complete
    for iteration in (10, 20, 30):
        store.save(iteration, state(iteration))
        assert newest_iteration(CheckpointStore(tmp_path, generation=1)) == iteration
    assert list(tmp_path.glob("*i00000000000020-*.ckpt")), "the one before is kept, too"
    assert list(tmp_path.glob("*i00000000000040-*.part"))


def test_an_unfinished_file_that_cannot_be_removed_fails_no_checkpoint(tmp_path):
    (tmp_path / "g0000000000-i00000000000010.1.unfinished").mkdir()
    store = CheckpointStore(tmp_path, generation=1)
    store.save(10, state(10))
    assert newest_iteration(store) == 10


def test_superseded_generation_can_neither_write_nor_read(tmp_path):
    older = CheckpointStore(tmp_path, generation=1)
    CheckpointStore(tmp_path, generation=2).save(300, state(300))
    with pytest.raises(Superseded):
        older.save(500, state(500))
    with pytest.raises(Superseded):
        older.newest()
    assert newest_iteration(CheckpointStore(tmp_path, generation=2)) == 300


class FullDisk(io.RawIOBase):
    """Accepts a number of bytes."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity

    def writable(self) -> bool:
        return True

    def write(self, content: bytes) -> int:
        self._capacity -= len(content)
        if self._capacity < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(content)

    def fileno(self) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("capacity", [0, 100, 10_000, 1 << 30])
def test_full_disk_keeps_older_checkpoints(tmp_path, monkeypatch, capacity):
    """At any position in the file, and also if the error appears only at its end."""
    store = CheckpointStore(tmp_path, generation=1)
    store.save(10, state(10))

    def opened(path: Path, mode: str = "r"):
        path.touch()
        return FullDisk(capacity)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", opened)
        with pytest.raises(OSError, match="No space left"):
            store.save(20, state(20) | {"more": torch.zeros(1000)})
    assert newest_iteration(store) == 10
    assert len(list(tmp_path.iterdir())) == 1


def test_checkpoint_runs_no_code(tmp_path):
    class Surprise:
        def __reduce__(self):
            return print, ("code in a checkpoint has run",)

    store = CheckpointStore(tmp_path, generation=1)
    store.save(10, {"model": Surprise()})
    assert store.newest() is None
    ((_, reason),) = store.unreadable.values()
    assert "Weights only" in reason


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def replace_by_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def replace_by_link(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


def forge(folder: Path, generation: int, content: bytes) -> Path:
    """A file whose content matches its name."""
    file = folder / f"g{generation:010d}-i{99:014d}-{hashlib.sha256(content).hexdigest()}.ckpt"
    file.write_bytes(content)
    return file


def forge_state(folder: Path, generation: int, content: Any) -> Path:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return forge(folder, generation, buffer.getvalue())


DAMAGES = (flip_a_bit, lambda file: file.write_bytes(b""), replace_by_folder, replace_by_fifo, replace_by_link)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_cannot_be_read_is_passed_over_and_named(tmp_path, damage):
    store = CheckpointStore(tmp_path, generation=1)
    store.save(10, state(10))
    newest = store.save(20, state(20)).file
    damage(newest)
    assert newest_iteration(store, at_least=20) is None
    assert store.has_damaged
    assert newest_iteration(store) == 10
    ((iteration, reason),) = store.unreadable.values()
    assert [*store.unreadable] == [newest.name]
    assert iteration == 20
    assert reason
    assert [store.has_written(10), store.has_written(20)] == [True, False]
    for later in (30, 40, 50):  # what cannot be removed stops no save
        store.save(later, state(later))
    assert newest_iteration(store) == 50


def test_a_file_without_permission_is_passed_over(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, generation=1)
    store.save(10, state(10))
    newest = store.save(20, state(20)).file
    open_file = os.open

    def denied(path: Any, *more: Any, **named: Any) -> int:  # as root may open any
        if Path(path) == newest:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_file(path, *more, **named)

    monkeypatch.setattr(os, "open", denied)
    assert newest_iteration(store) == 10
    assert store.unreadable == {newest.name: (20, "Permission denied")}


def test_a_missing_file_is_no_damage(tmp_path):
    store = CheckpointStore(tmp_path, generation=1)
    store.save(10, state(10))
    store.save(20, state(20)).file.unlink()
    assert newest_iteration(store, at_least=20) is None
    assert not store.has_damaged


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    folder = tmp_path / "job"
    folder.write_text("not a folder")
    store = CheckpointStore(folder, generation=1)
    assert store.newest() is None
    assert store.unreadable == {str(folder): (0, "Not a directory")}


@pytest.mark.parametrize("damage", DAMAGES)
def test_only_a_complete_checkpoint_of_a_newer_generation_supersedes(tmp_path, damage):
    newer = CheckpointStore(tmp_path, generation=99)
    file = newer.save(99, state(99)).file
    older = CheckpointStore(tmp_path, generation=2)
    with pytest.raises(Superseded):
        older.save(10, state(10))
    damage(file)
    for iteration in (10, 20, 30):
        older.save(iteration, state(iteration))
    assert newest_iteration(older) == 30
    assert not older.unreadable
    assert older.has_written(30)
    assert len([path for path in tmp_path.iterdir() if path != file]) == 2
    newer.save(120, state(120))
    with pytest.raises(Superseded):
        older.save(40, state(40))


@pytest.mark.parametrize("content", [b"", b"no state", b"PK\x03\x04"])
def test_a_file_that_matches_its_name_and_holds_no_state_is_no_checkpoint(tmp_path, content):
    store = CheckpointStore(tmp_path, generation=2)
    store.save(10, state(10))
    forge(tmp_path, 3, content)
    assert newest_iteration(store) == 10
    forge(tmp_path, 2, content)
    assert newest_iteration(store) == 10
    assert store.has_damaged


def test_a_state_is_a_map(tmp_path):
    forge_state(tmp_path, 2, [1, 2])
    assert CheckpointStore(tmp_path, generation=2).newest() is None


def test_a_checkpoint_of_another_job_is_passed_over(tmp_path):
    own, other = (CheckpointStore(tmp_path, generation=generation, owner=f"job-{generation}") for generation in (1, 2))
    own.save(10, state(10))
    other.save(20, state(20))
    assert newest_iteration(own) == 10
    own_later = CheckpointStore(tmp_path, generation=3, owner="job-1")
    assert newest_iteration(own_later) == 10
    assert [reason for _, reason in own_later.unreadable.values()] == ["job job-2 wrote it"]
    assert newest_iteration(CheckpointStore(tmp_path, generation=3)) == 20


def test_an_invalid_file_of_a_newer_generation_is_read_once(tmp_path, monkeypatch):
    store, reads = CheckpointStore(tmp_path, generation=2), list[str]()
    forge(tmp_path, 99, b"no state")
    digest = hashlib.file_digest

    def counted(file: Any, name: str) -> Any:
        reads.append(name)
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    for iteration in range(10):
        store.save(iteration, state(iteration))
    assert len(reads) == 1


def part(numbers: range) -> dict:
    """Of a parameter with four elements."""
    moment = {"step": torch.tensor(3.0), "moment": torch.arange(4.0)[numbers.start : numbers.stop]}
    return {
        "state": {0: moment},
        "param_groups": [{"lr": 0.1, "params": [0]}],
        "slices": [(0, numbers.start, numbers.stop)],
        "layouts": [((2, 2), (2, 1))],
        "group_sizes": [1],
    }


def save_in_parts(folder: Path, iteration: int, *, generation: int = 1) -> None:
    store = CheckpointStore(folder, generation=generation)
    for rank, numbers in ((1, range(2, 4)), (0, range(2))):
        written = ShardedCheckpoints(store, rank, 2, within_s=1.0).save(
            iteration, {**state(iteration), "optimizer": part(numbers)}
        )
        assert (written is None) == (rank > 0), "rank 0 completes the checkpoint"


def test_the_parts_of_a_state_become_a_whole_one(tmp_path):
    for iteration in (10, 20, 30):
        save_in_parts(tmp_path, iteration)
    newest = CheckpointStore(tmp_path, generation=1).newest()
    assert newest is not None
    assert newest["optimizer"]["state"][0]["moment"].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert newest["optimizer"]["param_groups"] == [{"lr": 0.1, "params": [0]}]
    assert len(list(tmp_path.glob("*.part"))) == 4, "two checkpoints are kept"


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"torn")])
def test_a_checkpoint_without_a_part_is_passed_over(tmp_path, damage):
    for iteration in (10, 20):
        save_in_parts(tmp_path, iteration)
    damage(next(tmp_path.glob("*i00000000000020-p00001-*.part")))
    assert newest_iteration(CheckpointStore(tmp_path, generation=1)) == 10


def test_rank_0_names_the_ranks_whose_parts_are_missing(tmp_path):
    store = CheckpointStore(tmp_path, generation=1)
    with pytest.raises(TimeoutError, match="the parts of ranks 1, 2 are not in"):
        ShardedCheckpoints(store, 0, 3, within_s=0.0).save(10, {**state(10), "optimizer": part(range(4))})
    assert store.newest() is None
