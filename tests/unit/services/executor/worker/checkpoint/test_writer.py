"""Checkpoints beside the training, which waits for a copy, but not for the disk."""

import hashlib
import threading
from pathlib import Path

import pytest
import torch

from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore, Superseded
from elasticflow.services.executor.worker.checkpoint.writer import CheckpointWriter, HostCopies
from elasticflow.shared.messages.worker_protocol.from_worker import (
    CheckpointFailed,
    CheckpointWritten,
    digest_of_model,
    iteration_of_model,
)
from elasticflow.shared.runtime.process.files import rename_durably


class WorkerReported:
    """A channel that keeps its messages."""

    def __init__(self):
        self.messages = []
        self.sent = threading.Semaphore(0)
        self.checkpoint_request, self.model_request, self.expiring_lease_until_s = 0, 0, 0.0

    def take_checkpoint_request(self):
        request, self.checkpoint_request = self.checkpoint_request, 0
        return request

    def send(self, message):
        self.messages.append(message)
        self.sent.release()


class Disk:
    """Finishes a write when the test allows it."""

    def __init__(self, folder):
        self.free, self.began = threading.Event(), threading.Event()
        self.store = CheckpointStore(folder, generation=1, publish=self.publish)

    def publish(self, path, name):
        self.began.set()
        self.free.wait(30)
        rename_durably(path, name)


def newest(store):
    state = store.newest()
    assert state is not None
    return state


def test_training_continues_while_the_disk_writes_an_earlier_state(tmp_path):
    disk, channel = Disk(tmp_path), WorkerReported()
    writer, weight = CheckpointWriter(channel), torch.zeros(3)
    writer.write_in_background(disk.store, 5, {"iteration": 5, "model": {"weight": weight}})
    assert disk.began.wait(30)
    weight += 1
    writer.write_in_background(
        disk.store, 6, {"iteration": 6, "model": {"weight": weight}}
    )  # skipped: the disk is busy
    disk.free.set()
    assert channel.sent.acquire(timeout=30)
    assert channel.messages == [CheckpointWritten(iteration=5)]
    assert newest(disk.store)["model"]["weight"].tolist() == [0.0, 0.0, 0.0]


def test_a_requested_checkpoint_is_reported_once_with_its_file(tmp_path):
    disk, channel = Disk(tmp_path), WorkerReported()
    writer = CheckpointWriter(channel)
    writer.write_in_background(disk.store, 5, {"iteration": 5})
    channel.checkpoint_request = 40
    assert not writer.is_due, "the disk is busy with one that was begun before"
    disk.free.set()
    writer.join()
    assert writer.is_due
    writer.write_in_background(disk.store, 6, {"iteration": 6})
    writer.join()
    assert not writer.is_due
    first, asked = channel.messages
    assert first == CheckpointWritten(iteration=5)
    assert (asked.iteration, asked.request) == (6, 40)
    assert Path(asked.file).stat().st_size == asked.num_bytes > 0


def model_files(folder):
    """By iteration; each name has the digest of the file's bytes."""
    files = list((folder / "model").glob("*"))
    for path in files:
        assert digest_of_model(path.name) == hashlib.sha256(path.read_bytes()).hexdigest()
    return {iteration_of_model(path.name): torch.load(path, weights_only=True) for path in files}


def test_the_model_alone_is_written_at_the_end_and_if_a_request_wants_it(tmp_path):
    channel, store = WorkerReported(), CheckpointStore(tmp_path, generation=1)
    writer = CheckpointWriter(channel)
    for iteration, wants_model in ((5, False), (6, True)):
        channel.checkpoint_request = 40 + iteration
        channel.model_request = channel.checkpoint_request if wants_model else 0
        writer.write_in_background(store, iteration, {"iteration": iteration, "model": {"w": torch.ones(2)}, "x": 1})
        writer.join()
        assert list(model_files(tmp_path)) == ([6] if wants_model else [])
    writer.write_now(store, 7, {"iteration": 7, "model": {"w": torch.zeros(2)}}, model_dir=tmp_path)
    ((iteration, model),) = model_files(tmp_path).items()
    assert (iteration, model["w"].tolist()) == (7, [0.0, 0.0])


def test_a_full_disk_loses_the_model_file_and_not_the_job(tmp_path):
    channel = WorkerReported()
    (tmp_path / "model").touch()  # no folder: each write there fails
    writer = CheckpointWriter(channel)
    store = CheckpointStore(tmp_path, generation=1)
    writer.write_now(store, 7, {"iteration": 7, "model": {}}, model_dir=tmp_path)
    assert channel.messages == [CheckpointWritten(iteration=7)]


def test_each_expiring_lease_makes_one_checkpoint_due(tmp_path):
    channel, store = WorkerReported(), CheckpointStore(tmp_path, generation=1)
    writer = CheckpointWriter(channel)
    assert not writer.is_due
    for iteration, until_s in ((5, 100.0), (9, 200.0)):  # extended in the end, and expiring again
        channel.expiring_lease_until_s = until_s
        assert writer.is_due
        writer.write_in_background(store, iteration, {"iteration": iteration})
        writer.join()
        assert not writer.is_due
    channel.expiring_lease_until_s = 0.0
    assert not writer.is_due
    assert channel.messages == [CheckpointWritten(iteration=5), CheckpointWritten(iteration=9)]


def test_a_stop_and_a_full_disk_reply_to_a_request(tmp_path):
    def refuse(path, name):
        raise OSError(28, "No space left on device")

    channel = WorkerReported()
    writer = CheckpointWriter(channel)
    channel.checkpoint_request = 40
    writer.write_in_background(CheckpointStore(tmp_path, generation=1, publish=refuse), 5, {"iteration": 5})
    writer.join()
    channel.checkpoint_request = 41
    writer.write_now(CheckpointStore(tmp_path, generation=1), 6, {"iteration": 6})
    refused, kept = channel.messages
    assert (type(refused), refused.request) == (CheckpointFailed, 40)
    assert "No space left" in refused.reason
    assert (kept.iteration, kept.request) == (6, 41)


def test_the_last_checkpoint_waits_for_the_previous_one_and_for_the_disk(tmp_path):
    disk, channel = Disk(tmp_path), WorkerReported()
    writer = CheckpointWriter(channel)
    writer.write_in_background(disk.store, 5, {"iteration": 5})
    assert disk.began.wait(30)
    disk.free.set()
    writer.write_now(disk.store, 7, {"iteration": 7})
    assert channel.messages == [CheckpointWritten(iteration=5), CheckpointWritten(iteration=7)]
    assert newest(disk.store)["iteration"] == 7


def test_a_state_of_another_shape_gets_new_memory(tmp_path):
    disk, channel = Disk(tmp_path), WorkerReported()
    disk.free.set()
    writer = CheckpointWriter(channel)
    for iteration, size in ((1, 3), (2, 3), (3, 5)):
        writer.write_in_background(
            disk.store, iteration, {"iteration": iteration, "w": torch.full((size,), float(iteration))}
        )
        assert channel.sent.acquire(timeout=30)
        writer.join()
        assert newest(disk.store)["w"].tolist() == [float(iteration)] * size


def test_an_obsolete_worker_raises_superseded(tmp_path):
    CheckpointStore(tmp_path, generation=2).save(1, {"iteration": 1})
    writer = CheckpointWriter(WorkerReported())
    older = CheckpointStore(tmp_path, generation=1)
    writer.write_in_background(older, 5, {"iteration": 5})
    writer.join()
    with pytest.raises(Superseded):
        writer.write_in_background(older, 6, {"iteration": 6})


def test_checkpoints_that_cost_more_are_written_less_often(tmp_path, monkeypatch):
    """A write that takes 3 s of processor time is followed by a minute of training."""
    channel, processor_s = WorkerReported(), iter([10.0, 13.0])
    writer = CheckpointWriter(channel)
    assert writer.interval_s(30.0) == 30.0
    monkeypatch.setattr("elasticflow.services.executor.worker.checkpoint.writer.time.thread_time", processor_s.__next__)
    writer.write_in_background(CheckpointStore(tmp_path, generation=1), 5, {"iteration": 5})
    writer.join()
    assert writer.interval_s(30.0) == pytest.approx(60.0, abs=1.0)
    assert writer.interval_s(90.0) == 90.0


def test_the_memory_of_a_copy_is_reused():
    copies, weight = HostCopies(), torch.zeros(3)
    first = copies.begin({"weight": weight})
    assert first["weight"].data_ptr() != weight.data_ptr()
    weight += 1
    second = copies.begin({"weight": weight})
    assert copies.finish() >= 0.0
    assert second["weight"].data_ptr() == first["weight"].data_ptr()
    assert second["weight"].tolist() == [1.0, 1.0, 1.0]
    assert copies.begin({"weight": torch.zeros(4)})["weight"].shape == (4,)
