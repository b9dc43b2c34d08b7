"""What workers know of each other belongs to a generation: whoever was on its way to an agreement knows less."""

# pyright: reportPrivateImportUsage=false

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from services.executor.worker.groups import Group, PeerLost
from services.executor.worker.trainer import Trainer

NAMES = ("loss",)
PATIENCE_S = 3.0  # of a collective; nobody waits so long where all is well


class Members:
    """Rank 1 of some, who says what it is asked to tell rank 0's word of."""

    rank, group = 1, None

    def __init__(self, *, hears: bool = True) -> None:
        self.asked: list[Any] = []
        self._hears = hears

    def from_rank_0(self, value: Any) -> Any:
        self.asked.append(value)
        if not self._hears:
            raise PeerLost("rank 0 died on its way through the others")
        return NAMES


class Survivors:
    """Those who are left, over gloo: each in a thread of its own."""

    def __init__(self, store: dist.Store, rank: int) -> None:
        self.rank = rank
        self.group = Group(
            store, generation=2, rank=rank, size=2, device=torch.device("cpu"), timeout_s=PATIENCE_S
        )

    def from_rank_0(self, value: Any) -> Any:
        return self.group.broadcast_object(value, source=0)


def trainer_of(members: Any) -> Trainer:
    """As far as names are agreed upon."""
    trainer = object.__new__(Trainer)
    trainer.members = members
    trainer.assignment = SimpleNamespace(purpose="profile")  # type: ignore[assignment]
    trainer.telemetry = SimpleNamespace(began=lambda _: None)  # type: ignore[assignment]
    trainer.iteration, trainer.metric_names = 0, None
    return trainer


def test_names_of_metrics_are_agreed_upon_once_in_each_generation_by_all() -> None:
    members = Members()
    trainer = trainer_of(members)
    for generation in (1, 2):
        trainer.begin(generation)
        for _ in range(2):
            assert trainer._agreed_names([NAMES]) == NAMES
    assert members.asked == [NAMES, NAMES]


@pytest.mark.parametrize("rank_that_had_heard", [0, 1])
def test_survivors_of_whom_one_had_heard_the_names_go_on_together(rank_that_had_heard: int) -> None:
    """Else one waits for the names, and one for the agreement that follows them."""
    store = dist.HashStore()

    def survive(rank: int) -> list[float]:
        had_heard = rank == rank_that_had_heard
        trainer = trainer_of(Members(hears=had_heard))
        trainer.begin(1)
        if had_heard:
            trainer._agreed_names([NAMES])
        else:
            with pytest.raises(PeerLost):
                trainer._agreed_names([NAMES])
        survivors = Survivors(store, rank)
        trainer.members = survivors  # type: ignore[assignment]
        trainer.begin(2)
        assert trainer._agreed_names([NAMES]) == NAMES
        return [float(theirs) for theirs in survivors.group.all_gather(torch.tensor([rank]))]

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(survive, range(2))) == [[0.0, 1.0], [0.0, 1.0]]
