"""What may go wrong, how often, and the network between all parties. All chance comes from one seeded generator."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simulator.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Mean seconds between faults of a kind, over the whole pool; None: never."""

    max_delay_s: float = 0.005  # of any message
    duplicate_probability: float = 0.0  # of a fact, and of a wish given to two replicas
    worker_crash_every_s: float | None = None
    node_crash_every_s: float | None = None  # with all its workers, at once
    partition_every_s: float | None = None  # a node that lives, and reaches nobody
    executor_restart_every_s: float | None = None  # back before anybody notices
    service_restart_every_s: float | None = None
    max_outage_s: float = 20.0  # of a crashed or parted node
    until_s: float = float("inf")  # no new faults from here on


NO_FAULTS = Faults()
MANY_FAULTS = Faults(
    max_delay_s=0.3,
    duplicate_probability=0.1,
    worker_crash_every_s=25.0,
    node_crash_every_s=60.0,
    partition_every_s=60.0,
    executor_restart_every_s=60.0,
    service_restart_every_s=5.0,
)


class Network:
    """Delays, and what comes twice."""

    _SHORTEST_S = 0.0005
    REPEATED_WITHIN_S = 5.0

    def __init__(self, chance: np.random.Generator, faults: Faults) -> None:
        self._chance, self._faults = chance, faults

    def delay_s(self) -> float:
        return float(self._chance.uniform(self._SHORTEST_S, self._faults.max_delay_s))

    def repeated_after_s(self) -> float | None:
        """When a message comes once more; None: it does not."""
        if self._chance.random() >= self._faults.duplicate_probability:
            return None
        return float(self._chance.uniform(0.0, self.REPEATED_WITHIN_S))


class Link:
    """One party's way to the others. While it is down messages wait on their side of it."""

    def __init__(self, engine: Engine, network: Network) -> None:
        self._engine, self._network = engine, network
        self.up = True
        self._waiting: list[Callable[[], None]] = []

    def carry(self, arrives: Callable[[], None]) -> None:
        """Let it arrive, once."""
        self._engine.after(self._network.delay_s(), lambda: self._pass(arrives))

    def carry_fact(self, arrives: Callable[[], None]) -> None:
        """Let it arrive, and perhaps again: a writer without an answer repeats itself."""
        self.carry(arrives)
        again_s = self._network.repeated_after_s()
        if again_s is not None:
            self._engine.after(again_s, lambda: self._pass(arrives))

    def mend(self) -> None:
        self.up = True
        waiting, self._waiting = self._waiting, []
        for arrives in waiting:
            self._pass(arrives)

    def cut(self) -> None:
        """For good: what waits is lost with its sender."""
        self.up = False
        self._waiting.clear()

    def _pass(self, arrives: Callable[[], None]) -> None:
        if self.up:
            arrives()
        else:
            self._waiting.append(arrives)
