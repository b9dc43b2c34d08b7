"""Streams, whose length is unknown: each sample has one place, for any workers, in any process, after any restart."""

import random  # noqa: TID251 - users' code draws from it
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from elasticflow.services.executor.worker.data.dataset import OTHER_SAMPLES, Stream, StreamOrder, recognize
from elasticflow.services.executor.worker.data.loader_settings import settings_of
from elasticflow.services.executor.worker.data.read_ahead import ReadAhead
from elasticflow.services.executor.worker.data.sample_readers import UnsizedReader, checksum_of
from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.cpu_slot_limits import CpuThrottle

NEVER = 10**6


class Lines(IterableDataset):
    """Samples are (epoch, number, a number drawn while reading). size: of an epoch."""

    def __init__(self, size: int, *, shuffled: bool = False) -> None:
        self.size, self.shuffled = size, shuffled
        self.epoch = 0
        self.opened: list[int] = []  # epochs

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        self.opened.append(self.epoch)
        numbers = torch.randperm(self.size).tolist() if self.shuffled else range(self.size)
        for number in numbers:
            yield self.epoch, number, random.random()


class Seekable(Lines):
    """Tells its state, and continues there; also where an iteration was given up. read: samples, by all copies."""

    next = 0
    read = 0

    def state_dict(self) -> dict[str, Any]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.next = state["next"]

    def __iter__(self) -> Iterator[Any]:
        for number in self.numbers():
            yield self.epoch, number, random.random()

    def numbers(self) -> Iterator[int]:
        for number in range(self.next, self.size):
            self.next = number + 1
            type(self).read += 1
            yield number
        self.next = 0


class LosesItsBuffer(Seekable):
    """As a shuffle that continues without the samples that it has held."""

    def numbers(self) -> Iterator[int]:
        held: list[int] = []
        for number in super().numbers():
            held.append(number)
            if len(held) == 3:
                yield held.pop(random.randrange(3))
        yield from held


class Worker:
    """What one worker reads, by itself, since it has begun with this part of the job's state."""

    def __init__(self, iterable: Any, *, batch: int, state: Any = None, mark_every: int = NEVER) -> None:
        self.stream = Stream(iterable)
        self.order = StreamOrder(seed=3, global_batch_size=batch)
        self.reader = UnsizedReader(iterable, self.order, list, mark_every=mark_every)
        if state is not None:
            place = self.stream.resume(state)
            while not self.reader(place):
                pass

    def read(self, iteration: int, rank: int = 0, world_size: int = 1, count: int = 1) -> list[Any]:
        nodes = VirtualNodes(count=count, global_batch_size=self.order.global_batch_size)
        parts = self.order.parts(nodes.computed_by(rank, world_size), iteration)
        return [sample for part in parts for sample in self.stream.note(self.reader(part))]


def run(iterable: Any, *, batch: int, steps: int, **settings: Any) -> tuple[Worker, list[list[Any]], list[Any]]:
    """A worker alone: its batches, and the state before each and at the end."""
    worker = Worker(iterable, batch=batch, **settings)
    batches, states = [], [worker.stream.state(0)]
    for iteration in range(steps):
        batches.append(worker.read(iteration))
        states.append(worker.stream.state(iteration + 1))
    return worker, batches, states


@settings(deadline=None, max_examples=50)
@given(
    size=st.integers(4, 20),
    batch=st.integers(1, 4),
    kind=st.sampled_from([Lines, Seekable, LosesItsBuffer]),
    mark_every=st.integers(1, 5),
    crew=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=6),
)
def test_each_sample_goes_to_one_virtual_node_in_the_order_of_the_stream(size, batch, kind, mark_every, crew):
    """crew: the workers that train in each pair of steps, by number. New ones begin with the state of the others."""
    _, alone, states = run(kind(size), batch=batch, steps=20, mark_every=mark_every)
    workers: dict[int, Worker] = {}
    together: list[Any] = []
    for iteration in range(20):
        present = crew[iteration // 2 % len(crew)][:batch]
        workers = {number: worker for number, worker in workers.items() if number in present}
        for rank, number in enumerate(present):
            if number not in workers:
                begun = Worker(kind(size), batch=batch, state=states[iteration], mark_every=mark_every)
                workers[number] = begun
            together += workers[number].read(iteration, rank, len(present), batch)
        assert {str(each.stream.state(iteration + 1)) for each in workers.values()} == {str(states[iteration + 1])}
    assert together == [sample for samples in alone for sample in samples]
    for epoch in range(20 * batch // size):
        of_epoch = together[epoch * size : (epoch + 1) * size]
        assert {each[0] for each in of_epoch} == {epoch}
        assert sorted(each[1] for each in of_epoch) == list(range(size))
        if kind is not LosesItsBuffer:
            assert [each[1] for each in of_epoch] == list(range(size))


def test_an_epoch_that_ends_with_a_batch_is_known_to_have_ended():
    _, _, states = run(Lines(6), batch=3, steps=4)
    positions = [each["position"] for each in states]
    assert [each["epoch"] for each in positions] == [0, 0, 1, 1, 2]
    assert [each["epoch_start"] for each in positions] == [0, 0, 6, 6, 12]


def test_a_stream_that_shuffles_by_itself_does_so_anew_in_each_epoch():
    _, batches, states = run(Lines(9, shuffled=True), batch=3, steps=6)
    numbers = [sample[1] for batch in batches for sample in batch]
    assert sorted(numbers[:9]) == sorted(numbers[9:]) == list(range(9))
    assert numbers[:9] != numbers[9:]
    restarted = Worker(Lines(9, shuffled=True), batch=3, state=states[4])
    assert restarted.read(4) == batches[4]


def test_a_worker_opens_the_present_epoch_only():
    _, batches, states = run(Lines(10), batch=4, steps=9)
    lines = Lines(10)
    assert Worker(lines, batch=4, state=states[8]).read(8) == batches[8]
    assert lines.opened == [3]


def test_a_stream_with_a_state_continues_there():
    _, batches, states = run(Seekable(1000), batch=4, steps=60, mark_every=20)
    assert states[40]["mark"]["state"] == {"next": 80}  # whose batch is a part of the checksum
    assert states[41]["mark"]["state"] == {"next": 160}
    Seekable.read = 0
    restarted = Worker(Seekable(1000), batch=4, state=states[45], mark_every=20)
    assert restarted.read(45) == batches[45]
    assert Seekable.read == 4 * 6 + 1


def test_a_state_that_loses_samples_is_not_used():
    _, batches, states = run(LosesItsBuffer(1000), batch=4, steps=60, mark_every=20)
    LosesItsBuffer.read = 0
    assert Worker(LosesItsBuffer(1000), batch=4, state=states[45], mark_every=20).read(45) == batches[45]
    assert LosesItsBuffer.read > 4 * 46


class CannotTell(Lines):
    def state_dict(self, num_samples: int) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError


class TellsAnObject(CannotTell):
    def state_dict(self) -> dict[str, Any]:
        return {"samples": object()}


@pytest.mark.parametrize("kind", [CannotTell, TellsAnObject])
def test_a_state_that_cannot_be_kept_is_done_without(kind):
    _, batches, states = run(kind(1000), batch=4, steps=30, mark_every=10)
    assert states[30]["mark"] is None
    assert Worker(kind(1000), batch=4, state=states[25], mark_every=10).read(25) == batches[25]


def test_a_repeated_step_and_the_next_are_not_read_again():
    lines = Lines(NEVER)
    worker = Worker(lines, batch=4)
    batches = [worker.read(iteration, count=4) for iteration in range(8)]
    assert worker.read(6, rank=1, world_size=2, count=4) == batches[6][2:]
    assert worker.read(7, rank=0, world_size=2, count=4) == batches[7][:2]
    assert lines.opened == [0]
    assert worker.read(0) == batches[0]  # as when a measurement begins again
    assert lines.opened == [0, 0]


class Unseeded(Lines):
    def __iter__(self) -> Iterator[Any]:
        generator = random.Random()
        while True:
            yield generator.random()


class Counting(Lines):
    """Its order depends on how often it was opened."""

    set_epoch = None

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        yield from ((self.epoch, number) for number in range(self.size))


@pytest.mark.parametrize(("iterable", "step"), [(Unseeded(0), 1), (Counting(10), 7)])
def test_a_stream_that_gives_other_samples_after_a_restart_is_refused(iterable, step):
    _, _, states = run(iterable, batch=4, steps=8)
    fresh = type(iterable)(iterable.size)
    with pytest.raises(TrainingFailed, match="gave other samples when it was opened again"):
        Worker(fresh, batch=4, state=states[step])


@pytest.mark.parametrize(("size", "error"), [(0, "no samples in epoch 0"), (3, "global_batch_size: 4 is more than")])
def test_a_stream_without_a_batch_is_named(size, error):
    with pytest.raises(TrainingFailed, match=error):
        Worker(Lines(size), batch=4).read(0)


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 1


class OnlyByIndex:
    def __getitem__(self, index: int) -> int:
        return index


def test_what_is_a_stream():
    assert recognize(Lines(3)).stream is not None
    assert recognize(Endless()).epochs(8) is None
    with pytest.raises(TrainingFailed, match="drop_last: the data set has no length"):
        recognize(settings_of(DataLoader(Endless(), batch_size=2, drop_last=True), seed=0))
    for other in (iter(range(3)), (number for number in range(3)), OnlyByIndex()):
        with pytest.raises(TrainingFailed, match="whose __iter__ begins anew in each call"):
            recognize(other)


@pytest.mark.parametrize(
    ("sample", "other"),
    [
        ({"image": torch.zeros(2, 2)}, {"image": torch.zeros(2, 2).index_fill(0, torch.tensor(1), 1.0)}),
        ([torch.ones(2, dtype=torch.complex64)], [torch.ones(2, dtype=torch.complex64).conj() * 1j]),
        ("text", "texts"),
        (b"text", b"texts"),
        ((1, 2.0, None), (1, 2.5, None)),
    ],
)
def test_a_checksum_tells_samples_apart(sample, other):
    assert checksum_of(sample, 7) != checksum_of(other, 7)
    assert checksum_of(sample, 7) == checksum_of(sample, 7) != checksum_of(sample, 8)


# --- in a reader process ---


class SeesItsWorld(Lines):
    """As one that divides itself among the workers of a torch loader."""

    def __iter__(self) -> Iterator[Any]:
        assert get_worker_info() is None
        yield from super().__iter__()


def read_ahead(iterable: Any, *, num_processes: int = 1) -> tuple[ReadAhead, Stream]:
    stream, order = Stream(iterable), StreamOrder(seed=3, global_batch_size=4)
    made = ReadAhead(
        UnsizedReader(iterable, order, list),
        order,
        stream=stream,
        num_processes=num_processes,
        device=torch.device("cpu"),
        cpu_throttle=CpuThrottle(1.0),
    )
    return made, stream


def test_a_process_reads_what_the_worker_would():
    nodes = VirtualNodes(count=2, global_batch_size=4).computed_by(0, 1)
    _, expected, states = run(SeesItsWorld(10), batch=4, steps=9)
    for state in (None, states[5]):
        reading, stream = read_ahead(SeesItsWorld(10))
        if state is not None:
            reading.begin_at(stream.resume(state), lambda: None)
        first = 0 if state is None else 5
        for iteration in range(first, 9):
            assert [each for part in reading.take(nodes, iteration) for each in part] == expected[iteration]
            assert stream.state(iteration + 1) == states[iteration + 1]
        reading.close()


def test_a_worker_reads_on_where_its_process_has_died():
    nodes = VirtualNodes(count=2, global_batch_size=4).computed_by(0, 1)
    _, expected, _ = run(Lines(10), batch=4, steps=9)
    reading, _ = read_ahead(Lines(10))
    for iteration in range(9):
        assert [each for part in reading.take(nodes, iteration) for each in part] == expected[iteration]
        if iteration == 5:
            reading._processes[0].close()


def test_an_unseeded_stream_is_refused_after_the_first_step():
    nodes = VirtualNodes(count=2, global_batch_size=4).computed_by(0, 1)
    reading, _ = read_ahead(Unseeded(0))
    reading.take(nodes, 0)
    with pytest.raises(TrainingFailed, match="gave other samples"):
        reading.require_same_samples(nodes)
    reading.close()
    seeded, _ = read_ahead(Lines(10, shuffled=True))
    seeded.take(nodes, 0)
    seeded.require_same_samples(nodes)
    seeded.close()


def test_a_stream_that_counts_its_epochs_is_refused_when_the_second_begins():
    nodes = VirtualNodes(count=2, global_batch_size=4).computed_by(0, 1)
    reading, _ = read_ahead(Counting(10))
    with pytest.raises(TrainingFailed) as refused:
        all(reading.take(nodes, iteration) for iteration in range(NEVER))
    assert str(refused.value) == OTHER_SAMPLES
    reading.close()
