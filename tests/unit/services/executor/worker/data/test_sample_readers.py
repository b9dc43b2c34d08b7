"""Streamed data: each sample once an epoch, the same on every worker and in every process."""

import random  # noqa: TID251 - users' code draws from it
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

from elasticflow.services.executor.worker.data.dataset import recognize, sample_order
from elasticflow.services.executor.worker.data.sample_readers import reader_of
from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.shared.messages.job_spec import JobSpec


class Files:
    """Samples are (partition, offset, a number drawn while reading). yields: the actual number in each partition."""

    def __init__(self, sizes: list[int], yields: list[int] | None = None) -> None:
        self.partition_sizes = sizes
        self.yields = yields or sizes
        self.opened: list[tuple[int, int]] = []

    def read_partition(self, partition: int, start: int) -> Iterator[Any]:
        self.opened.append((partition, start))
        for offset in range(start, self.yields[partition]):
            yield partition, offset, random.random()


class Numbers(IterableDataset):
    """Shuffles by itself, and augments."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Any]:
        for number in torch.randperm(self.size).tolist():
            yield number, random.random()


class Job:
    """A job with these settings: what each worker reads, as if it had trained since the first iteration."""

    def __init__(self, dataset: Any, *, batch: int, count: int = 0, shuffle: bool = True, window: int = 8) -> None:
        self.dataset = dataset
        function = SimpleNamespace(virtual_nodes=count, shuffle=shuffle, shuffle_window=window)
        spec = JobSpec(training_function="m:C", global_batch_size=batch, max_iterations=1, deadline_in_s=1.0)
        self._known = recognize(dataset)
        self._order = sample_order(self._known, function, spec)  # pyright: ignore[reportArgumentType]
        self._nodes = VirtualNodes(count=count or min(batch, 4), global_batch_size=batch)

    @property
    def batches_an_epoch(self) -> int:
        return -(-self._known.partitions.num_samples // self._nodes.global_batch_size)

    def worker(self) -> Any:
        return reader_of(self._known, self._order, list)

    def read(self, reader: Any, iteration: int, rank: int = 0, world_size: int = 1) -> list[Any]:
        parts = self._order.parts(self._nodes.computed_by(rank, world_size), iteration)
        return [sample for part in parts for sample in reader(part)]


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 3),
    batch=st.integers(1, 4),
    shuffle=st.booleans(),
    window=st.integers(1, 20),
    crew=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=6),
)
def test_each_sample_once_an_epoch_and_the_same_for_any_readers(sizes, batch, shuffle, window, crew):
    """crew: the workers that train in each pair of iterations, by number; new ones join in between."""
    job = Job(Files(sizes), batch=batch, shuffle=shuffle, window=window)
    alone, workers = job.worker(), {}
    seen: list[Any] = []
    for iteration in range(2 * job.batches_an_epoch + 1):
        present = crew[iteration // 2 % len(crew)]
        together: list[Any] = []
        for rank, number in enumerate(present[:batch]):
            reader = workers.setdefault(number, job.worker())
            together += job.read(reader, iteration, rank, min(len(present), batch))
        assert together == job.read(alone, iteration)
        seen += [sample[:2] for sample in together]
    every = sorted((p, offset) for p, size in enumerate(sizes) for offset in range(size))
    assert sorted(seen[: len(every)]) == sorted(seen[len(every) : 2 * len(every)]) == every
    if not shuffle:
        assert seen[: len(every)] == every


def test_an_iterable_that_shuffles_by_itself_gives_all_workers_the_same():
    job = Job(Numbers(30), batch=7)
    alone = job.worker()
    epochs = [sample for iteration in range(9) for sample in job.read(alone, iteration)]
    numbers = [number for number, _ in epochs]
    assert sorted(numbers[:30]) == sorted(numbers[30:60]) == list(range(30))
    assert numbers[:30] != numbers[30:60]
    joining = [sample for iteration in range(9) for sample in job.read(job.worker(), iteration)]
    assert joining == epochs


def test_a_staying_worker_opens_a_partition_once_per_lane_and_a_joining_one_at_its_window():
    files = Files([50] * 8)
    job = Job(files, batch=4, count=4, window=16)
    reader = job.worker()
    for iteration in range(job.batches_an_epoch):
        job.read(reader, iteration)
    assert len(files.opened) == 8
    assert {start for _, start in files.opened} == {0}
    files.opened.clear()
    job.read(job.worker(), 30)
    assert [start for _, start in files.opened] == [27] * 4  # the window begins at 28


@pytest.mark.parametrize(
    ("yields", "error"),
    [
        ([9, 10], "partition 0 of the data set ended after 9 samples, but it should have 10"),
        ([10, 11], "partition 1 of the data set has more than the 10 samples that it should have"),
    ],
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_partition_of_another_size_is_named(yields, error, shuffle):
    job = Job(Files([10, 10], yields), batch=4, shuffle=shuffle)
    reader = job.worker()
    with pytest.raises(TrainingFailed, match=error):
        _ = [job.read(reader, iteration) for iteration in range(job.batches_an_epoch)]


class Sized(list):
    def __init__(self, size: int, partition_sizes: Any) -> None:
        super().__init__(range(size))
        self.partition_sizes = partition_sizes


@pytest.mark.parametrize(
    ("dataset", "error"),
    [
        (iter(range(10)), "must return a map-style data set with a length, or a streamed one"),
        (Sized(10, [4, 5]), "partition_sizes: 9 samples in all, but len() of the data set is 10"),
        (Sized(10, [5.0, 5.0]), "partition_sizes: must be whole numbers"),
        (Sized(10, [11, -1]), "partition_sizes: must be whole numbers"),
        (SimpleNamespace(read_partition=lambda: 0), "has read_partition, but no partition_sizes"),
        (Files([2, 1]), "global_batch_size: 4 is more than the data set's 3 samples"),
        (Files([]), "the data set has no samples: its length, or that of its sampler, is 0"),
    ],
)
def test_an_unsupported_data_set_is_named(dataset, error):
    with pytest.raises(TrainingFailed) as raised:
        Job(dataset, batch=4)
    assert error in str(raised.value)


@pytest.mark.parametrize("window", [0, 2**20 + 1])
def test_a_window_out_of_bounds_is_named(window):
    with pytest.raises(TrainingFailed, match=f"shuffle_window: must be from 1 to 1048576 samples, not {window}"):
        Job(Sized(10, [5, 5]), batch=4, window=window)


class Staged(list):
    def set_epoch(self, epoch: int) -> None:
        self[:] = [epoch] * len(self)


def test_a_map_style_data_set_is_told_the_epoch_in_which_a_step_begins():
    job = Job(Staged(range(10)), batch=4)
    reader = job.worker()
    assert [job.read(reader, iteration)[0] for iteration in (0, 1, 2, 3, 4, 5, 0)] == [0, 0, 0, 1, 1, 2, 0]


def test_map_style_partitions_are_read_by_index():
    job = Job(Sized(60, [20, 20, 20]), batch=6, count=3)
    reader = job.worker()
    seen = [sample for iteration in range(10) for sample in job.read(reader, iteration)]
    assert sorted(seen) == list(range(60))
