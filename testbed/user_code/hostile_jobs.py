"""A training function that attacks its node before it trains. Its error says what it achieved, as JSON."""

import json
from collections.abc import Mapping

from attacks_on_node import ATTACKS
from training_functions import Points

from elasticflow import Scalar


class Hostile(Points):
    """hyperparameters: attack: a name of ATTACKS; target: its argument."""

    hyperparameters: Mapping[str, Scalar] = {**Points.hyperparameters, "attack": "", "target": ""}

    def init_model(self):
        attack = ATTACKS[str(self.hyperparameters["attack"])]
        raise RuntimeError(json.dumps(attack(str(self.hyperparameters["target"]))))
