"""A worker that dies at a chosen point of the engine, when the test says that it is its turn."""

import importlib
import os
import signal
import time
from collections.abc import Mapping
from functools import wraps
from pathlib import Path

from training_functions import Stateful

from elasticflow import Scalar

_UNHURRIED_S = 0.005  # for a pass, until somebody has died: what the test asks for comes before the end


class DiesAt(Stateful):
    """hyperparameters: at: module:function of the engine; turn: file with the process id of whom a call of it ends."""

    hyperparameters: Mapping[str, Scalar] = {**Stateful.hyperparameters, "at": "", "turn": ""}

    def init_model(self):
        path, _, name = self.hyperparameters["at"].partition(":")
        *owners, name = name.split(".")
        owner = importlib.import_module(path)
        for inner in owners:
            owner = getattr(owner, inner)
        setattr(owner, name, self.deadly(getattr(owner, name)))
        return super().init_model()

    def deadly(self, function):
        turn = Path(self.hyperparameters["turn"])

        @wraps(function)
        def called(*args, **kwargs):
            if turn.exists() and turn.read_text() == str(os.getpid()):
                turn.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return called

    def train(self, batch, model, optimizer):
        if not self.hyperparameters["turn"] or Path(self.hyperparameters["turn"]).exists():
            time.sleep(_UNHURRIED_S)
        return super().train(batch, model, optimizer)
