"""Nodes of a simulation that announce their end when they join, leave at that time, and are followed by others.

Stays are exponential; each node draws from its own random stream, so that its ends do not depend on other nodes.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnds:
    """part: of the nodes have ends, those that come first. away_s: until a new node joins under the name of one that
    left; None: none does."""

    seed: int
    part: float = 0.5
    mean_stay_s: float = 14_400.0
    least_stay_s: float = 60.0
    away_s: float | None = 600.0


class EndsOfNodes:
    """Draws the ends, in whole seconds after a node joined."""

    def __init__(self, node_ids: tuple[str, ...], ends: NodeEnds) -> None:
        self._ends = ends
        with_ends = node_ids[: round(ends.part * len(node_ids))]
        streams = np.random.SeedSequence(ends.seed).spawn(len(with_ends))
        self._chance = dict(zip(with_ends, map(np.random.default_rng, streams), strict=True))

    def until_s(self, node_id: str, now_s: float) -> float | None:
        """When this node, which joins now, will end; None: never."""
        chance = self._chance.get(node_id)
        if chance is None:
            return None
        return now_s + self._ends.least_stay_s + float(round(chance.exponential(self._ends.mean_stay_s)))
