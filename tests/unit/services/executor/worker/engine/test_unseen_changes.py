"""What the processes that read do not see is refused, and what the data set does by itself is not."""

import argparse
import random  # noqa: TID251 - as a user's data set may
import sys
from collections import deque
from functools import cached_property, lru_cache, partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, default_collate

from elasticflow.services.executor.worker.engine.unseen_changes import UnseenChanges
from elasticflow.services.executor.worker.interface import TrainingFailed

SCALE = 1.0
CFG = {"scale": 1, "nested": {"scale": 1}}
ARGS = argparse.Namespace(scale=1)
step = 0
settings = ModuleType(f"{__name__}_settings")
settings.__file__, settings.scale = "settings.py", 1  # pyright: ignore[reportAttributeAccessIssue]
sys.modules[settings.__name__] = settings


class Config:
    scale = 1


class Augmentation:
    def __init__(self) -> None:
        self.scale = 1
        self.applied = 0

    def __call__(self, value: Any) -> Any:
        self.applied += 1
        return self.shifted(value) * self.scale

    def shifted(self, value: Any) -> Any:
        return value + CFG["nested"]["scale"]  # pyright: ignore[reportIndexIssue]


class Slotted:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 1


def scaled(value: Any, *, by: Any = None) -> Any:
    return value * SCALE * (by or {}).get("scale", 1)


class Data(Dataset[Any]):
    def __init__(self) -> None:
        self.x, self.y = torch.zeros(10), np.arange(10)
        self.large = np.zeros(1 << 23)
        self.names, self.pairs, self.kept = ["a", "b"], [("a", [1])], {1, 2}
        self.paths = [f"{number}.png" for number in range(100_000)]
        self.recent = deque([1, 2])
        self._scale, self.cfg, self.transform = 1, {"scale": 1}, None
        self.augmentation, self.slotted = Augmentation(), Slotted()
        self.of_function, self.unread = partial(scaled, by={"scale": 1}), 0
        self.cache: dict[int, Any] = {}
        self.hits, self.counts, self.newest = 0, {"hits": 0}, 0
        self.file: object | None = None
        self.buffer, self.order = np.zeros(10), list(range(10))

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = object()
        self.hits += 1
        self.counts["hits"] += 1
        cache = self.cache
        if index not in cache:
            cache[index] = self.augmentation(self.x[index])
        setattr(self, "newest", index)  # noqa: B010 - as a base class may
        buffer = self.buffer
        buffer[index] = self.of_function(index)
        random.shuffle(self.order)
        value = cache[index] * self._scale * self.cfg["scale"] * ARGS.scale * Config.scale * self.slotted.scale
        if self.transform is not None:
            value = self.transform(value)
        return value, self.y[index], self.names[index % 2], self.label(index), self.size, getattr(self, "mixing", 0)

    def label(self, index: int) -> Any:
        more = self.pairs, self.large, self.kept, self.recent, settings.scale  # pyright: ignore[reportAttributeAccessIssue]
        return step, drawn(index), self.paths[index], more

    @cached_property
    def size(self) -> int:
        return len(self)


@lru_cache
def drawn(index: int) -> int:
    return index * CFG["scale"]  # pyright: ignore[reportReturnType, reportOperatorIssue]


class Staged(Data):
    """set_epoch(), which the processes that read call."""

    def set_epoch(self, epoch: int) -> None:
        self.cfg["scale"], self._scale = epoch, epoch


class Collate:
    def __init__(self) -> None:
        self.longest = 10

    def __call__(self, samples: list[Any]) -> list[Any]:
        return samples[: self.longest]


def require_none(changes: UnseenChanges, *, whole: bool = True) -> None:
    for _ in range(1 if whole else 20):  # of small ones, a few at each batch
        changes.require_none(whole=whole)


def refused(changes: UnseenChanges, name: str, *, whole: bool = True) -> None:
    with pytest.raises(TrainingFailed) as failed:
        require_none(changes, whole=whole)
    assert f"the loop changed {name}, which the processes that read the data do not see" in str(failed.value)
    assert "set_epoch(epoch)" in str(failed.value)


def assign(name: str, value: Any) -> Any:
    def change(data: Data) -> None:
        setattr(data, name, value)

    return change


def set_item(name: str, key: Any, value: Any) -> Any:
    def change(data: Data) -> None:
        getattr(data, name)[key] = value

    return change


IN_OBJECTS = [
    ("_scale", assign("_scale", 3)),
    ("_scale", lambda data: delattr(data, "_scale")),
    ("transform", assign("transform", Augmentation())),
    ("augmentation", assign("augmentation", Augmentation())),
    ("augmentation.scale", lambda data: setattr(data.augmentation, "scale", 3)),
    ("slotted.scale", lambda data: setattr(data.slotted, "scale", 3)),
    ("cfg['scale']", set_item("cfg", "scale", 3)),
    ("cfg['scale']", lambda data: data.cfg.pop("scale")),
    ("names[0]", set_item("names", 0, 3)),
    ("names", lambda data: data.names.append("c")),
    ("kept", lambda data: data.kept.add(3)),
    ("recent[0]", set_item("recent", 0, 3)),
    ("pairs[0][1][0]", lambda data: set_item("pairs", 0, 3)(argparse.Namespace(pairs=data.pairs[0][1]))),
    ("x", lambda data: data.x.mul_(3)),
    ("of_function['by']['scale']", lambda data: data.of_function.keywords["by"].update(scale=3)),
    ("mixing", assign("mixing", True)),
]
OF_LARGE_ONES = [
    ("y", set_item("y", slice(None), 0)),
    ("y", set_item("y", 3, 0)),
    ("large", set_item("large", slice(None), 1.0)),
    ("paths[99999]", set_item("paths", -1, "other.png")),
    ("x", lambda data: data.x.numpy().fill(3)),
]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("name", "change"), IN_OBJECTS)
def test_a_change_of_what_the_data_set_holds_is_refused(name, change, whole):
    data = Data()
    changes = UnseenChanges(data)
    require_none(changes, whole=whole)
    change(data)
    refused(changes, f"dataset.{name}", whole=whole)


@pytest.mark.parametrize(("name", "change"), OF_LARGE_ONES)
def test_a_change_of_much_data_is_refused_at_the_border_of_an_epoch(name, change):
    data = Data()
    changes = UnseenChanges(data)
    change(data)
    require_none(changes, whole=False)
    refused(changes, f"dataset.{name}")


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("name", "holder", "key"),
    [
        ("SCALE", globals(), "SCALE"),
        ("step", globals(), "step"),
        ("CFG['scale']", CFG, "scale"),
        ("CFG['nested']['scale']", CFG["nested"], "scale"),
        ("ARGS.scale", vars(ARGS), "scale"),
        ("settings.scale", vars(settings), "scale"),
    ],
)
def test_a_change_of_a_global_that_its_code_reads_is_refused(monkeypatch, name, holder, key, whole):
    changes = UnseenChanges(Data())
    require_none(changes, whole=whole)
    monkeypatch.setitem(holder, key, 3)
    refused(changes, name, whole=whole)


def test_a_change_of_a_class_attribute_is_refused(monkeypatch):
    changes = UnseenChanges(Data())
    monkeypatch.setattr(Config, "scale", 3)
    refused(changes, "Config.scale")


def test_a_change_of_a_variable_of_main_is_refused():
    scale = 1

    class InMain(Dataset[int]):
        def __getitem__(self, index: int) -> int:
            return index * scale

    changes = UnseenChanges(InMain())
    require_none(changes)
    scale = 3
    refused(changes, "scale")


def test_a_change_of_the_collate_function_is_refused():
    collate = Collate()
    changes = UnseenChanges(Data(), collate)
    collate.longest = 5
    refused(changes, "Collate.longest")


def test_a_change_within_the_containers_of_torch_is_refused():
    first, second, x = Data(), Data(), torch.zeros(3)
    changes = UnseenChanges(ConcatDataset([Subset(first, range(3)), second, TensorDataset(x)]))
    require_none(changes)
    first._scale = 3
    refused(changes, "dataset.datasets[0].dataset._scale")
    first._scale = 1
    x += 1
    refused(changes, "dataset.datasets[2].tensors[0]")


def test_several_changes_are_named_at_once():
    data = Data()
    changes = UnseenChanges(data)
    data._scale, data.names[0], data.cfg["scale"] = 3, "c", 3
    with pytest.raises(
        TrainingFailed, match=r"changed dataset\._scale, dataset\.names\[0\], dataset\.cfg\['scale'\]|and"
    ):
        require_none(changes)


class Node:
    def __init__(self, following: Any) -> None:
        self.following, self.scale = following, 1


class Chain(Dataset[Any]):
    def __init__(self, length: int) -> None:
        self.first = None
        for _ in range(length):
            self.first = Node(self.first)

    def __getitem__(self, index: int) -> Any:
        node = self.first
        while node is not None:
            index, node = index * node.scale, node.following
        return index


def test_of_a_long_chain_of_objects_the_first_ones_are_compared():
    data = Chain(50_000)
    changes = UnseenChanges(data)
    require_none(changes)
    data.first.following.following.scale = 3  # pyright: ignore[reportOptionalMemberAccess]
    refused(changes, "dataset.first.following.following.scale")


# --- what is not refused ---


def test_what_the_data_set_does_by_itself_in_an_evaluation_is_not_refused():
    """A cache, counters, a file that is opened, a buffer and an order of its own."""
    data = Data()
    changes = UnseenChanges(Subset(data, range(10)), default_collate)
    for index in range(10):
        data[index]
    assert (data.hits, data.counts["hits"], len(data.cache), data.augmentation.applied) == (10, 10, 10, 10)
    require_none(changes)
    require_none(changes, whole=False)
    data.cfg["of_a_cache"] = 3
    require_none(changes)


def test_what_set_epoch_sets_is_not_refused_but_the_rest_is():
    data = Staged()
    changes = UnseenChanges(Subset(data, range(10)))
    data.set_epoch(3)
    require_none(changes)
    data.augmentation.scale = 3
    refused(changes, "dataset.dataset.augmentation.scale")


def test_a_set_epoch_that_nobody_calls_for_the_readers_is_refused():
    """They call that of the data set, or of the one that it wraps, but none of those in a list."""
    data = Staged()
    changes = UnseenChanges(ConcatDataset([data]))
    data.set_epoch(3)
    refused(changes, "dataset.datasets[0]._scale, dataset.datasets[0].cfg['scale']")


def test_an_equal_value_is_no_change_and_is_compared_from_then_on():
    data = Data()
    changes = UnseenChanges(data)
    data._scale, data.names = int("1"), list(data.names)
    require_none(changes)
    data.names[0] = "c"
    refused(changes, "dataset.names[0]")


def test_what_no_code_of_the_data_set_names_is_not_refused():
    data = Data()
    changes = UnseenChanges(data)
    data.unread = 3
    require_none(changes)


def test_a_setting_that_is_restored_before_the_next_batch_is_not_refused():
    data = Data()
    changes = UnseenChanges(data)
    data._scale = 3
    data._scale = 1
    require_none(changes)


def test_the_model_and_what_training_changes_in_a_module_are_not_refused():
    data, model, transform = Data(), nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1))
    data.transform = transform  # pyright: ignore[reportAttributeAccessIssue]
    data.cfg["scale"] = model  # pyright: ignore[reportArgumentType]
    changes = UnseenChanges(data, known=[model])
    transform.eval()
    model.weight.data.fill_(3)
    model.bias = nn.Parameter(torch.ones(1))
    require_none(changes)


# --- of a class ---


class Job:
    def __init__(self) -> None:
        self.longest, self.steps, self.data = 10, 0, Data()

    def collate(self, samples: list[Any]) -> list[Any]:
        return self.shortened(samples)

    def shortened(self, samples: list[Any]) -> list[Any]:
        return samples[: self.longest]


def test_what_a_class_changes_of_its_data_set_and_of_what_its_collate_reads_is_refused():
    job = Job()
    changes = UnseenChanges(job.data, job.collate, job=job)
    job.steps += 1
    require_none(changes)
    job.longest = 5
    with pytest.raises(TrainingFailed, match=r"^train\(\) or evaluate\(\) changed self\.longest, which the processes"):
        require_none(changes)
    job.longest = 10
    job.data._scale = 3
    with pytest.raises(
        TrainingFailed, match=r"^train\(\) or evaluate\(\) changed dataset\._scale, which the processes"
    ):
        require_none(changes)
