"""A worker that dies at a chosen point of the engine when the test names its process."""

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

_SLOW_DOWN_S = 0.0002  # for each pass and each step done, while a worker may still die


class DiesAt(Stateful):
    """hyperparameters: deaths: a folder. Its file `points` lists points, each a module:function of the engine. Its file
    `victim` names a process id and the point whose next call kills it. While `slow_down` exists, steps grow longer."""

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

    def deadly(self, function: Callable[..., Any], victim: str) -> Callable[..., Any]:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if (whose := self.deaths / "victim").exists() and whose.read_text() == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return called

    def train(self, batch, model, optimizer):
        if (self.deaths / "slow_down").exists():
            time.sleep(_SLOW_DOWN_S * self.iteration)
        return super().train(batch, model, optimizer)
