"""Checkpoints beside the training: a copy is waited for, the disk is not."""

import threading
from pathlib import Path

import pytest
import torch

from services.executor.worker.checkpoint import CheckpointStore, Superseded, rename_durably
from services.executor.worker.saving import Saving
from shared.messages.from_worker import Checkpointed, NotCheckpointed


class Said:
    """A channel that keeps what is said."""

    def __init__(self):
        self.messages = []
        self.said = threading.Semaphore(0)
        self.checkpoint_request, self.fading_lease_until_s = 0, 0.0

    def take_checkpoint_request(self):
        request, self.checkpoint_request = self.checkpoint_request, 0
        return request

    def send(self, message):
        self.messages.append(message)
        self.said.release()


class Disk:
    """Writes when it is let."""

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


def test_the_training_goes_on_while_the_disk_writes_what_was_then(tmp_path):
    disk, channel = Disk(tmp_path), Said()
    saving, weight = Saving(channel), torch.zeros(3)
    saving.begin(disk.store, 5, {"iteration": 5, "model": {"weight": weight}})
    assert disk.began.wait(30)
    weight += 1
    saving.begin(disk.store, 6, {"iteration": 6, "model": {"weight": weight}})  # left out: the disk is busy
    disk.free.set()
    assert channel.said.acquire(timeout=30)
    assert channel.messages == [Checkpointed(iteration=5)]
    assert newest(disk.store)["model"]["weight"].tolist() == [0.0, 0.0, 0.0]


def test_one_that_is_asked_for_is_told_with_its_file_and_only_once(tmp_path):
    disk, channel = Disk(tmp_path), Said()
    saving = Saving(channel)
    saving.begin(disk.store, 5, {"iteration": 5})
    channel.checkpoint_request = 40
    assert not saving.is_due, "the disk is busy with one that was begun before"
    disk.free.set()
    saving.join()
    assert saving.is_due
    saving.begin(disk.store, 6, {"iteration": 6})
    saving.join()
    assert not saving.is_due
    first, asked = channel.messages
    assert first == Checkpointed(iteration=5)
    assert (asked.iteration, asked.request) == (6, 40)
    assert Path(asked.file).stat().st_size == asked.num_bytes > 0


def test_a_lease_that_fades_is_the_last_chance_once(tmp_path):
    channel, store = Said(), CheckpointStore(tmp_path, generation=1)
    saving = Saving(channel)
    assert not saving.is_due
    for iteration, until_s in ((5, 100.0), (9, 200.0)):  # extended in the end, and fading again
        channel.fading_lease_until_s = until_s
        assert saving.is_due
        saving.begin(store, iteration, {"iteration": iteration})
        saving.join()
        assert not saving.is_due
    channel.fading_lease_until_s = 0.0
    assert not saving.is_due
    assert channel.messages == [Checkpointed(iteration=5), Checkpointed(iteration=9)]


def test_a_stop_answers_what_was_asked_and_a_full_disk_does_too(tmp_path):
    def refuse(path, name):
        raise OSError(28, "No space left on device")

    channel = Said()
    saving = Saving(channel)
    channel.checkpoint_request = 40
    saving.begin(CheckpointStore(tmp_path, generation=1, publish=refuse), 5, {"iteration": 5})
    saving.join()
    channel.checkpoint_request = 41
    saving.finish(CheckpointStore(tmp_path, generation=1), 6, {"iteration": 6})
    refused, kept = channel.messages
    assert (type(refused), refused.request) == (NotCheckpointed, 40)
    assert "No space left" in refused.reason
    assert (kept.iteration, kept.request) == (6, 41)


def test_the_last_one_waits_for_the_one_before_and_for_the_disk(tmp_path):
    disk, channel = Disk(tmp_path), Said()
    saving = Saving(channel)
    saving.begin(disk.store, 5, {"iteration": 5})
    assert disk.began.wait(30)
    disk.free.set()
    saving.finish(disk.store, 7, {"iteration": 7})
    assert channel.messages == [Checkpointed(iteration=5), Checkpointed(iteration=7)]
    assert newest(disk.store)["iteration"] == 7


def test_a_state_of_another_shape_gets_memory_of_its_own(tmp_path):
    disk, channel = Disk(tmp_path), Said()
    disk.free.set()
    saving = Saving(channel)
    for iteration, size in ((1, 3), (2, 3), (3, 5)):
        saving.begin(
            disk.store, iteration, {"iteration": iteration, "w": torch.full((size,), float(iteration))}
        )
        assert channel.said.acquire(timeout=30)
        saving.join()
        assert newest(disk.store)["w"].tolist() == [float(iteration)] * size


def test_a_leftover_learns_that_it_is_one(tmp_path):
    CheckpointStore(tmp_path, generation=2).save(1, {"iteration": 1})
    saving = Saving(Said())
    older = CheckpointStore(tmp_path, generation=1)
    saving.begin(older, 5, {"iteration": 5})
    saving.join()
    with pytest.raises(Superseded):
        saving.begin(older, 6, {"iteration": 6})
