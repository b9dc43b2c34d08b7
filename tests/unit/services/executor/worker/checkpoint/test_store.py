"""Checkpoints are complete or absent, and the newest generation comes first."""

import errno
import io
from pathlib import Path

import pytest
import torch

from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore, Superseded


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
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        store.newest()
