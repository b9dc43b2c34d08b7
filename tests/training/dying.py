"""A worker that dies at a chosen point of the engine, when the test says that it is its turn."""

import importlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from training_functions import Stateful

from elasticflow import Scalar

_UNHURRIED_S = (
    0.0002  # for each pass and each step done, while somebody may still die: the end comes after that
)


class DiesAt(Stateful):
    """hyperparameters: deaths: folder of `points`, each a module:function of the engine; of `turn`, which says whose it
    is, by process id, and at the next call of which of them; and of `unhurried`, for as long as more is to happen."""

    hyperparameters: Mapping[str, Scalar] = {**Stateful.hyperparameters, "deaths": ""}

    def init_model(self):
        for point in (self.deaths / "points").read_text().split():
            path, _, name = point.partition(":")
            *owners, name = name.split(".")
            owner = importlib.import_module(path)
            for inner in owners:
                owner = getattr(owner, inner)
            setattr(owner, name, self.deadly(getattr(owner, name), f"{os.getpid()} {point}"))
        return super().init_model()

    @property
    def deaths(self) -> Path:
        return Path(self.hyperparameters["deaths"])

    def deadly(self, function: Callable[..., Any], turn: str) -> Callable[..., Any]:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if (whose := self.deaths / "turn").exists() and whose.read_text() == turn:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return called

    def train(self, batch, model, optimizer):
        if (self.deaths / "unhurried").exists():
            time.sleep(_UNHURRIED_S * self.iteration)
        return super().train(batch, model, optimizer)
