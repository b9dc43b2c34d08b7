"""Agreed names of metrics belong to a generation: a worker whose agreement was interrupted does not know them."""

# pyright: reportPrivateImportUsage=false

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from elasticflow.services.executor.worker.elastic.groups import Group
from elasticflow.services.executor.worker.elastic.peer_loss import PeerLost
from elasticflow.services.executor.worker.process.cpu_throttle import CpuThrottle
from elasticflow.services.executor.worker.steps.training_step import Trainer

NAMES = ("loss",)
TIMEOUT_S = 3.0  # of a collective; unreached unless the test fails


class Members:
    """Rank 1, which records the values for which it asks rank 0."""

    rank, group = 1, None

    def __init__(self, *, knows: bool = True) -> None:
        self.asked: list[Any] = []
        self._knows = knows

    def from_rank_0(self, value: Any) -> Any:
        self.asked.append(value)
        if not self._knows:
            raise PeerLost("rank 0 died on its way through the others")
        return NAMES


class Survivors:
    """Survivors over gloo, each in a thread of its own."""

    def __init__(self, store: dist.Store, rank: int) -> None:
        self.rank = rank
        self.group = Group(store, generation=2, rank=rank, size=2, device=torch.device("cpu"), timeout_s=TIMEOUT_S)

    def from_rank_0(self, value: Any) -> Any:
        return self.group.broadcast_object(value, source=0)


def trainer_of(members: Any) -> Trainer:
    """With the state that agreeing on names needs."""
    trainer = object.__new__(Trainer)
    trainer.members = members
    trainer.assignment = SimpleNamespace(purpose="profile")  # type: ignore[assignment]
    trainer.telemetry = SimpleNamespace(training_began=lambda _: None)  # type: ignore[assignment]
    trainer.iteration, trainer.metric_names = 0, None
    trainer.cpu_throttle = CpuThrottle(1.0)
    return trainer


def test_a_generation_does_not_pay_for_what_its_workers_did_before() -> None:
    """A survivor's first step once took 17 s: one of its threads had computed while it waited for the others."""
    trainer, computed_s, slept_s = trainer_of(Members()), 0.0, list[float]()
    trainer.cpu_throttle = CpuThrottle(
        0.2, cpu_clock=lambda: computed_s, wall_clock=lambda: computed_s, sleep=slept_s.append
    )
    computed_s = 3.4
    trainer.begin_generation(2, ())
    computed_s += 0.01
    trainer.cpu_throttle.sleep_off_excess()
    assert slept_s == [pytest.approx(0.04)]


def test_all_workers_agree_on_metric_names_once_in_each_generation() -> None:
    members = Members()
    trainer = trainer_of(members)
    for generation in (1, 2):
        trainer.begin_generation(generation, ())
        for _ in range(2):
            assert trainer._agreed_names([NAMES]) == NAMES
    assert members.asked == [NAMES, NAMES]


@pytest.mark.parametrize("rank_that_knew", [0, 1])
def test_survivors_continue_together_although_only_one_knew_the_names(rank_that_knew: int) -> None:
    """Otherwise one would wait for the names, and one for the agreement after them."""
    store = dist.HashStore()

    def survive(rank: int) -> list[float]:
        knew_names = rank == rank_that_knew
        trainer = trainer_of(Members(knows=knew_names))
        trainer.begin_generation(1, ())
        if knew_names:
            trainer._agreed_names([NAMES])
        else:
            with pytest.raises(PeerLost):
                trainer._agreed_names([NAMES])
        survivors = Survivors(store, rank)
        trainer.members = survivors  # type: ignore[assignment]
        trainer.begin_generation(2, ())
        assert trainer._agreed_names([NAMES]) == NAMES
        return [float(theirs) for theirs in survivors.group.all_gather(torch.tensor([rank]))]

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(survive, range(2))) == [[0.0, 1.0], [0.0, 1.0]]
