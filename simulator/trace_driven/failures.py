"""Nodes that go down and come back: times between are exponential, each node draws from a stream of its own."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shared.scheduling.filling import OUTAGE_S
from simulator.engine import Engine

HOUR_S, DAY_S = 3_600.0, 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """max_down: a node that would be one too many stays up this time. None: no bound.

    counts_s: with max_down, a node that failed counts as down for so long at least, though it is back.
    """

    seed: int
    mean_up_s: float = 14 * DAY_S
    mean_down_s: float = 2 * HOUR_S
    max_down: int | None = None
    counts_s: float = OUTAGE_S


class FailingNodes:
    """lose(node_id), regain(node_id): called when a node goes down and when it is back."""

    def __init__(
        self,
        engine: Engine,
        node_ids: tuple[str, ...],
        failures: Failures,
        *,
        lose: Callable[[str], None],
        regain: Callable[[str], None],
    ) -> None:
        self._engine, self._failures = engine, failures
        self._lose, self._regain = lose, regain
        self._num_down = 0
        # one stream a node: what happens to one does not depend on the others
        streams = np.random.SeedSequence(failures.seed).spawn(len(node_ids))
        for node_id, stream in zip(node_ids, streams, strict=True):
            self._fail_later(node_id, np.random.default_rng(stream))

    def _fail_later(self, node_id: str, chance: np.random.Generator) -> None:
        up_s = float(chance.exponential(self._failures.mean_up_s))
        down_s = float(chance.exponential(self._failures.mean_down_s))
        self._engine.after(up_s, lambda: self._fail(node_id, down_s, chance))

    def _fail(self, node_id: str, down_s: float, chance: np.random.Generator) -> None:
        most = self._failures.max_down
        if most is not None and self._num_down >= most:
            self._fail_later(node_id, chance)
            return
        self._num_down += 1
        self._lose(node_id)
        self._engine.after(down_s, lambda: self._mend(node_id, chance))
        self._engine.after(max(down_s, self._failures.counts_s), self._forget)

    def _mend(self, node_id: str, chance: np.random.Generator) -> None:
        self._regain(node_id)
        self._fail_later(node_id, chance)

    def _forget(self) -> None:
        self._num_down -= 1
