"""Checkpoints are complete or absent, and the newest generation comes first."""

import errno
import io
import os
from pathlib import Path

import pytest
import torch

from elasticflow.services.executor.worker.checkpoint.sharded import ShardedCheckpoints
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
