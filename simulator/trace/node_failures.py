"""Nodes that fail and rejoin: times between are exponential, each node draws from its own random stream."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from elasticflow.shared.scheduling.availability.fill_one_job import OUTAGE_S
from elasticflow.simulator.engine.event_queue import Engine

HOUR_S, DAY_S = 3_600.0, 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """max_down: nodes down at once at most; a further failure is skipped. None: no limit.

    counts_s: with max_down, a failed node counts as down for at least this long, even after it rejoined.
    """

    seed: int
    mean_up_s: float = 14 * DAY_S
    mean_down_s: float = 2 * HOUR_S
    max_down: int | None = None
    counts_s: float = OUTAGE_S


class FailingNodes:
    """lose(node_id), rejoin(node_id): called when a node fails and when it rejoins."""

    def __init__(
        self,
        engine: Engine,
        node_ids: tuple[str, ...],
        failures: Failures,
        *,
        lose: Callable[[str], None],
        rejoin: Callable[[str], None],
    ) -> None:
        self._engine, self._failures = engine, failures
        self._lose, self._rejoin = lose, rejoin
        self._num_down = 0
        # one stream for each node: its failures do not depend on other nodes
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
        self._engine.after(down_s, lambda: self._repair(node_id, chance))
        self._engine.after(max(down_s, self._failures.counts_s), self._forget)

    def _repair(self, node_id: str, chance: np.random.Generator) -> None:
        self._rejoin(node_id)
        self._fail_later(node_id, chance)

    def _forget(self) -> None:
        self._num_down -= 1
