"""What a script's DataLoader says about its data: kept in a job, or refused with what to write instead.

The order of samples is kept. The data set's own order and a plain shuffle are those of `SampleOrder`. Any other sampler
draws an epoch's order in every worker, from random numbers that follow from the job's seed and the epoch, so all
workers draw the same. A sampler that draws anything else is found: it is asked for one epoch more than once.
"""
# pyright: reportPrivateUsage=false
# (torch offers no other way to set what get_worker_info() returns)

import operator
import random  # noqa: TID251 - a user's sampler may draw from it, so it is seeded like the others
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from torch.utils.data._utils import worker as torch_worker

from elasticflow.services.executor.worker.data.random_seeds import SeedPhase, keep_generators, seed_generators, seed_of
from elasticflow.services.executor.worker.data.sample_order import Numbers
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.shared.runtime.process.logs import log

_MOST_WRAPPERS = 4  # of a data set: Subset and the like
_ITERATE_AS_TORCH = ("torch", "torchdata", "accelerate")  # packages whose loaders change nothing in a batch


class SamplerDraws:
    """The order that a sampler draws in each epoch, shape (size,). Raises TrainingFailed for one that does not repeat.

    size: samples of an epoch. digest: equal for equal draws; workers compare it, and a job with its own beginning.
    """

    def __init__(self, sampler: Any, seed: int) -> None:
        self._sampler = sampler
        self._seed = seed
        self._name = type(sampler).__name__
        self.size = self._length()
        first = self._draw(0)
        self._drawn = {1: self._draw(1), 0: first}  # by epoch; the newest two
        self._first = zlib.crc32(first.tobytes())
        self._require_repeatable()
        self.digest = f"{zlib.crc32(self._drawn[1].tobytes(), self._first):08x}"

    def __call__(self, epoch: int) -> Numbers:
        if epoch not in self._drawn:
            drawn = self._draw(epoch)
            self._require_repeatable()
            self._drawn = {epoch: drawn} | dict(islice(self._drawn.items(), 1))
        return self._drawn[epoch]

    def _require_repeatable(self) -> None:
        """Raise TrainingFailed unless epoch 0 is drawn as at first. This is checked also later, since weights may have
        changed."""
        if zlib.crc32(self._draw(0).tobytes()) != self._first:
            raise TrainingFailed(
                f"the sampler {self._name} draws another order when it is asked for the same epoch again, so each "
                "worker would train on other samples. Let it draw from the generators of torch, numpy or random, or "
                "from one in an attribute of it; its order may follow from set_epoch(), but not from the training"
            )

    def _draw(self, epoch: int) -> Numbers:
        with keep_generators():
            seed_generators(seed_of(self._seed, SeedPhase.READ, iteration=epoch))
            _begin_epoch(self._sampler, self._seed, epoch)
            samples = list(islice(iter(self._sampler), self.size + 1))
        if (size := self._length()) != self.size or len(samples) != self.size:
            found = size if size != self.size else "more" if len(samples) > self.size else len(samples)
            raise TrainingFailed(
                f"the sampler {self._name} has {found} samples in epoch {epoch}, but its length was {self.size}: an "
                "epoch of a job always has as many samples; let len() return what the sampler yields"
            )
        try:
            return np.fromiter(map(operator.index, samples), np.int64, self.size)
        except TypeError as error:
            kind = type(samples[0]).__name__
            raise TrainingFailed(
                f"the sampler {self._name} yields {kind}: let it yield the index of one sample at a time. A job forms "
                "batches of --batch samples in that order"
            ) from error

    def _length(self) -> int:
        try:
            return len(self._sampler)
        except (TypeError, NotImplementedError) as error:
            raise TrainingFailed(
                f"the sampler {self._name} has no length, so that a job could not count its epochs: add __len__(), "
                "the number of samples that it yields in each epoch"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderSettings:
    """shuffle: the order without draws. draws: of a sampler. drop_last: an epoch has whole batches only.

    begin_reading: called once in a process that reads, with its number.
    """

    dataset: Any
    shuffle: bool
    drop_last: bool
    draws: SamplerDraws | None
    begin_reading: Callable[[int], None] | None


def settings_of(loader: Any, seed: int) -> LoaderSettings:
    """seed: the job's. Raises TrainingFailed for what a job cannot keep, and what the user's sampler raises."""
    if not isinstance(loader, DataLoader):
        raise TrainingFailed(
            f"elastic() needs a torch.utils.data.DataLoader, not a {type(loader).__name__}: pass the loader of the "
            "training data"
        )
    batch_sampler, dataset = _plain_batch_sampler(loader), loader.dataset
    if replaced := [name for name, is_set in _without_effect(loader).items() if is_set]:
        log.info("loader_settings_replaced", settings=", ".join(replaced), by="the job's reader processes and seed")
    if isinstance(dataset, IterableDataset) or hasattr(dataset, "read_partition"):
        if loader.worker_init_fn is not None and loader.num_workers > 0:
            raise TrainingFailed(
                "worker_init_fn: a job itself divides a data set that is read in order among its workers: remove "
                "worker_init_fn, and let the data set iterate over all samples"
            )
        shuffle, draws, begin_reading = hasattr(dataset, "read_partition"), None, None
    else:
        sampler = batch_sampler.sampler
        is_shuffled, begin_reading = _is_shuffled(sampler, dataset), _reading_begins(loader, seed)
        draws = SamplerDraws(sampler, seed) if is_shuffled is None else None
        shuffle = bool(is_shuffled)
    return LoaderSettings(
        dataset=dataset,
        shuffle=shuffle,
        drop_last=batch_sampler.drop_last,
        draws=draws,
        begin_reading=begin_reading,
    )


def _plain_batch_sampler(loader: DataLoader[Any]) -> BatchSampler:
    if loader.batch_sampler is None:
        raise TrainingFailed(
            "the loader has batch_size=None, but a job forms global batches of --batch single samples: set a "
            "batch_size (its value has no effect), and let the data set return single samples"
        )
    if type(loader.batch_sampler) is not BatchSampler:
        raise TrainingFailed(
            f"batch_sampler: a {type(loader.batch_sampler).__name__} chooses whole batches, but a job forms global "
            "batches of --batch samples: pass sampler=..., which yields single samples in the order that you want"
        )
    owner = next(kind for kind in type(loader).__mro__ if "__iter__" in vars(kind))
    if owner.__module__.partition(".")[0] not in _ITERATE_AS_TORCH:
        raise TrainingFailed(
            f"{owner.__name__}.__iter__() would not run, since a job reads the data set itself: move what it does "
            "into the data set, collate_fn or the loop"
        )
    return loader.batch_sampler


def _without_effect(loader: DataLoader[Any]) -> dict[str, bool]:
    """Return which settings that change the speed, a time-out or a seed, but no data, are set."""
    return {
        "timeout": loader.timeout > 0,
        "prefetch_factor": loader.prefetch_factor not in (None, 2),
        "persistent_workers": loader.persistent_workers,
        "multiprocessing_context": loader.multiprocessing_context is not None,
        "generator": loader.generator is not None,
    }


def _is_shuffled(sampler: Any, dataset: Any) -> bool | None:
    """False: the data set's own order. True: a plain shuffle of it. None: another order."""
    try:
        size = len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise TrainingFailed("the loader's data set has no length: add __len__(), the number of its samples") from error
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas != 1:
        raise TrainingFailed(
            f"DistributedSampler(num_replicas={sampler.num_replicas}) leaves samples to processes that do not exist, "
            "since a script sees a world of one process: leave out num_replicas and rank"
        )
    if type(sampler) is SequentialSampler:
        return False if len(sampler) == size else None
    if type(sampler) is RandomSampler:
        is_whole = len(sampler.data_source) == sampler.num_samples == size
        return True if is_whole and not sampler.replacement else None
    if type(sampler) is DistributedSampler:
        return sampler.shuffle if len(sampler) == size else None
    return None


def _begin_epoch(sampler: Any, seed: int, epoch: int) -> None:
    """Tell the sampler, and those that it wraps, the epoch; seed the generators in their attributes."""
    numbers, known, waiting = count(1), set[int](), [sampler]
    while waiting:
        holder = waiting.pop()
        if id(holder) in known:
            continue
        known.add(id(holder))
        if callable(set_epoch := getattr(holder, "set_epoch", None)):
            set_epoch(epoch)
        for value in getattr(holder, "__dict__", {}).values():
            if isinstance(value, Sampler):
                waiting.append(value)
            elif isinstance(value, torch.Generator | np.random.Generator | np.random.RandomState | random.Random):
                _seed(value, seed_of(seed, SeedPhase.READ, iteration=epoch, micro_batch=next(numbers)))


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        fresh = type(generator.bit_generator)(seed)  # pyright: ignore[reportCallIssue]
        generator.bit_generator.state = fresh.state
    else:
        generator.seed(seed)


def set_epoch_of(dataset: Any) -> Callable[[int], Any] | None:
    """The method of the data set, or of the first that it wraps."""
    for _ in range(_MOST_WRAPPERS):
        if callable(method := getattr(dataset, "set_epoch", None)):
            return method
        dataset = getattr(dataset, "__dict__", {}).get("dataset")
    return None


# --- processes that read ---


def _reading_begins(loader: DataLoader[Any], seed: int) -> Callable[[int], None] | None:
    """What happens in each of torch's processes before it reads; None if it would have none."""
    if loader.num_workers == 0:
        return None

    def begin(process: int) -> None:
        own_seed = seed_of(seed, SeedPhase.READ, virtual_node=process)
        seed_generators(own_seed)
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=process, num_workers=loader.num_workers, seed=own_seed, dataset=loader.dataset
        )
        if loader.worker_init_fn is not None:
            loader.worker_init_fn(process)

    return begin


@contextmanager
def keep_worker_info() -> Iterator[None]:
    """Restore torch.utils.data.get_worker_info() after the block to what it was before."""
    before = torch_worker._worker_info
    try:
        yield
    finally:
        torch_worker._worker_info = before
