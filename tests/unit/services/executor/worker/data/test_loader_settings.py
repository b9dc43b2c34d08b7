"""What a script's loader says: its order is kept, the same in every process, or the loader is refused."""

import os
import random  # noqa: TID251 - users' samplers draw from it
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from elasticflow.services.executor.worker.data.dataset import recognize, sample_order
from elasticflow.services.executor.worker.data.loader_settings import (
    SamplerDraws,
    keep_worker_info,
    settings_of,
)
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.scripts.elastic_script import ElasticScript
from elasticflow.shared.messages.job_spec import JobSpec

DATA = list(range(60))


def epochs_of(loader: Any, *, batch: int = 7, count: int = 2, seed: int = 0) -> list[list[int]]:
    """What a job trains on in its first epochs."""
    settings = settings_of(loader, seed)
    dataset = recognize(settings)
    spec = JobSpec(
        training_function="m:__main__", global_batch_size=batch, max_iterations=9, deadline_in_s=1.0, seed=seed
    )
    function = ElasticScript.__new__(ElasticScript)
    function.shuffle, function.virtual_nodes = settings.shuffle, 0
    order, epochs = sample_order(dataset, function, spec), dataset.epochs(batch)
    samples: list[list[int]] = [[] for _ in range(count + 1)]
    for iteration in range(epochs.iterations(count)):
        positions = order.positions(iteration)
        for position, sample in zip(positions, order.samples(positions.start, positions.stop), strict=True):
            samples[position // epochs.size].append(int(sample))
    return samples[:count]


class Drawn(Sampler[int]):
    """The order is what `draw` returns in each epoch."""

    def __init__(self, draw: Any, size: int = 60) -> None:
        self.draw = draw
        self.size = size
        self.epoch = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        return iter(self.draw(self))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


# --- the order ---


def test_a_subset_is_all_that_is_trained_on_anew_in_each_epoch():
    first, second = epochs_of(DataLoader(DATA, sampler=SubsetRandomSampler(range(40))))
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second


def test_a_sample_of_weight_zero_is_never_trained_on():
    weights = [float(index < 10) for index in DATA]
    drawn = epochs_of(DataLoader(DATA, sampler=WeightedRandomSampler(weights, 80)))
    assert [len(epoch) for epoch in drawn] == [80, 80]
    assert {sample for epoch in drawn for sample in epoch} == set(range(10))


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(DATA),
        DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 4, False)),
        DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=1, rank=0, shuffle=False)),
        DataLoader(DATA, sampler=DATA),
    ],
)
def test_without_shuffling_the_order_of_the_data_set_stays(loader):
    assert epochs_of(loader) == [DATA, DATA]


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(DATA, shuffle=True),
        DataLoader(DATA, shuffle=True, generator=torch.Generator()),
        DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=1, rank=0)),
        DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 4, False)),
    ],
)
def test_a_plain_shuffle_is_that_of_a_job_class(loader):
    permutations = [np.random.default_rng((5, epoch, 0, 0)).permutation(60).tolist() for epoch in range(2)]
    assert epochs_of(loader, seed=5) == permutations


def test_a_sampler_of_other_samples_than_the_loaders_is_kept():
    assert epochs_of(DataLoader(DATA, sampler=SequentialSampler(range(20))), count=1) == [list(range(20))]
    drawn = epochs_of(DataLoader(DATA, sampler=RandomSampler(DATA, num_samples=25)), count=1)
    assert len(set(drawn[0])) == 25


DRAWS = {
    "torch": lambda _: torch.randperm(60),
    "numpy": lambda _: np.random.permutation(60),
    "random": lambda _: random.sample(DATA, 60),
    "epoch": lambda sampler: torch.randperm(60, generator=torch.Generator().manual_seed(sampler.epoch)),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_sampler_draws_the_same_for_an_epoch_whatever_was_drawn_before(draw):
    def drawn() -> list[list[int]]:
        return epochs_of(DataLoader(DATA, sampler=Drawn(draw)), count=3)

    first = drawn()
    torch.rand(3), np.random.rand(3), random.random()
    assert first == drawn()
    assert len({tuple(epoch) for epoch in first}) == 3


class Generators(Sampler[int]):
    """Draws from generators of its own, one of them in a sampler that it wraps."""

    def __init__(self) -> None:
        self.first = np.random.default_rng(1)
        self.second = random.Random(2)
        self.third = np.random.RandomState(3)
        self.inner = RandomSampler(DATA, generator=torch.Generator())

    def __len__(self) -> int:
        return 60

    def __iter__(self) -> Iterator[int]:
        places = self.first.permutation(self.third.permutation(self.second.sample(list(self.inner), 60)))
        return iter(places.tolist())


def test_generators_of_a_sampler_follow_the_jobs_seed_and_the_epoch():
    draws, seed_1 = SamplerDraws(Generators(), 0), SamplerDraws(Generators(), 1)
    epochs = [draws(epoch).tolist() for epoch in (3, 0, 1, 2)]
    assert SamplerDraws(Generators(), 0)(3).tolist() == epochs[0]
    assert len({tuple(epoch) for epoch in [*epochs, seed_1(0).tolist()]}) == 5
    assert draws.digest == SamplerDraws(Generators(), 0).digest != seed_1.digest


def test_drawing_leaves_the_generators_of_the_script_alone():
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    expected = torch.rand(1).item(), np.random.rand(), random.random()
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    SamplerDraws(Drawn(DRAWS["random"]), 0)(5)
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected


@given(
    size=st.integers(1, 40),
    batch=st.integers(1, 40),
    drop_last=st.booleans(),
    is_drawn=st.booleans(),
    shuffle=st.booleans(),
)
def test_an_epoch_has_as_many_iterations_as_the_loader_says(size, batch, drop_last, is_drawn, shuffle):
    batch, data = min(size, batch), list(range(size))
    sampler = Drawn(lambda _: torch.randperm(size), size)
    settings = {"sampler": sampler} if is_drawn else {"shuffle": shuffle}
    loader = DataLoader(data, batch_size=batch, drop_last=drop_last, **settings)
    epochs = recognize(settings_of(loader, 0)).epochs(batch)
    assert epochs.iterations(1) == len(loader)
    numbers = [epochs.number(iteration) for iteration in range(epochs.iterations(3))]
    assert numbers == sorted(numbers)
    assert numbers[epochs.iterations(2) :] in ([2] * len(loader), [2] * (len(loader) - 1))
    first, second = epochs_of(loader, batch=batch)
    if drop_last:
        assert len(first) == len(second) == len(loader) * batch
        assert len(set(first)) == len(set(second)) == len(first)
    else:
        assert sorted(first) == sorted(second) == data


# --- what is refused ---


class Bucketed(Sampler[list[int]]):
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2]])


class Doubling(DataLoader[Any]):
    def __iter__(self) -> Any:
        return ((each, each) for each in super().__iter__())


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


class Stream(IterableDataset[int]):
    def __len__(self) -> int:
        return 60

    def __iter__(self) -> Iterator[int]:
        return iter(DATA)


def growing(sampler: Drawn) -> list[int]:
    return DATA[: 60 - (sampler.epoch == 3)]


@pytest.mark.parametrize(
    ("loader", "error"),
    [
        ([1, 2], "elastic() needs a torch.utils.data.DataLoader, not a list"),
        (DataLoader(DATA, batch_size=None), "batch_size=None"),
        (DataLoader(DATA, batch_sampler=Bucketed()), "a Bucketed chooses whole batches"),
        (Doubling(DATA), "Doubling.__iter__() would not run"),
        (DataLoader(DATA, sampler=Endless()), "the sampler Endless has no length"),
        (
            DataLoader(DATA, sampler=DistributedSampler(DATA, num_replicas=2, rank=0)),
            "DistributedSampler(num_replicas=2) leaves samples",
        ),
        (DataLoader(DATA, sampler=Drawn(lambda _: [[0, 1]] * 60)), "the sampler Drawn yields list"),
        (DataLoader(DATA, sampler=Drawn(lambda _: DATA[1:])), "has 59 samples in epoch 0, but its length was 60"),
        (DataLoader(DATA, sampler=Drawn(lambda _: [*DATA, 1])), "has more samples in epoch 0, but its length was 60"),
        (
            DataLoader(DATA, sampler=Drawn(lambda _: os.urandom(60))),
            "draws another order when it is asked for the same",
        ),
        (DataLoader(DATA, sampler=Drawn(lambda _: np.random.default_rng().permutation(60))), "draws another order"),
        (DataLoader(Stream(), num_workers=2, worker_init_fn=print), "remove worker_init_fn"),
    ],
)
def test_what_a_job_cannot_keep_is_refused_at_once(loader, error):
    with pytest.raises(TrainingFailed) as raised:
        settings_of(loader, 0)
    assert error in str(raised.value)


def test_a_sampler_that_follows_the_training_is_refused_in_its_next_epoch():
    """Its weights, for example: they would differ between workers."""
    sampler = WeightedRandomSampler(torch.ones(60), 60)
    draws = SamplerDraws(sampler, 0)
    draws(2)
    sampler.weights[:30] = 0.0
    with pytest.raises(TrainingFailed, match="but not from the training"):
        draws(3)


def test_a_sampler_of_another_length_in_a_later_epoch_is_refused():
    draws = SamplerDraws(Drawn(growing), 0)
    draws(2)
    with pytest.raises(TrainingFailed, match="has 59 samples in epoch 3"):
        draws(3)


def test_a_batch_larger_than_what_the_sampler_yields_is_refused():
    with pytest.raises(TrainingFailed, match="50 is more than the sampler's 40 samples"):
        epochs_of(DataLoader(DATA, sampler=SubsetRandomSampler(range(40))), batch=50)


def test_a_class_cannot_return_a_loader():
    with pytest.raises(TrainingFailed, match="returned a DataLoader, whose batches, sampler and settings"):
        recognize(DataLoader(DATA))


# --- processes that read ---


def test_worker_init_fn_sees_what_torch_shows_it():
    seen: list[Any] = []

    def note(number: int) -> None:
        info = get_worker_info()
        assert info is not None
        seen.append((number, info.id, info.num_workers, info.dataset is DATA, info.seed == torch.initial_seed()))

    begin = settings_of(DataLoader(DATA, num_workers=2, worker_init_fn=note), 0).begin_reading
    assert begin is not None
    with keep_worker_info():
        begin(1)
    assert seen == [(1, 1, 2, True, True)]
    assert get_worker_info() is None


def test_without_processes_of_the_loader_worker_init_fn_is_not_called():
    """As in torch."""
    assert settings_of(DataLoader(DATA, worker_init_fn=print), 0).begin_reading is None
