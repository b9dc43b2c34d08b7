"""What workers know of each other belongs to a generation: whoever was on its way to an agreement knows less."""

from types import SimpleNamespace
from typing import Any

from services.executor.worker.trainer import Trainer


class Members:
    """Rank 1 of some, who says what it is asked to tell rank 0's word of."""

    rank, group = 1, None

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def from_rank_0(self, value: Any) -> Any:
        self.asked.append(value)
        return ("loss",)


def test_names_of_metrics_are_agreed_upon_once_in_each_generation_by_all() -> None:
    """Survivors of a first step in which only some had heard them would wait for each other for ever."""
    trainer, members = object.__new__(Trainer), Members()
    trainer.members = members  # type: ignore[assignment]
    trainer.assignment = SimpleNamespace(purpose="train")  # type: ignore[assignment]
    trainer.telemetry = SimpleNamespace(began=lambda _: None)  # type: ignore[assignment]
    trainer.iteration, trainer.metric_names = 1, None
    for generation in (1, 2):
        trainer.begin(generation)
        for _ in range(2):
            assert trainer._agreed_names([("loss",)]) == ("loss",)
    assert members.asked == [("loss",), ("loss",)]
