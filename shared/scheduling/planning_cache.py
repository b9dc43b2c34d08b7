"""The planning cache: what successive decisions of one policy instance compute again and again.

A policy instance owns one `PlanningCache`; no module keeps values between decisions. Each entry is keyed by everything
that it depends on, so that a decision with an empty cache is the same (tests/properties/test_planning_cache.py,
docs/adr/0033).
"""

from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

from elasticflow.shared.frozen_values import is_same
from elasticflow.shared.scheduling.availability.availability_profile import ScratchMemory
from elasticflow.shared.scheduling.jobs.live_jobs import LiveJobRows
from elasticflow.shared.scheduling.jobs.scheduler_view import KnownCurves
from elasticflow.shared.scheduling.placement.buddy_blocks import LastPositions
from elasticflow.shared.state.topology import Level, Topology

Arguments = TypeVarTuple("Arguments")
Answer = TypeVar("Answer")


class PlanningCache:
    """Rows of live jobs, their curves, the last placement, the last results of pure functions, and scratch arrays.

    Several policies that decide in turn on one ledger may share it, as in a simulation.
    """

    def __init__(self) -> None:
        self.curves = KnownCurves()
        self.rows = LiveJobRows(self.curves)
        self.scratch = ScratchMemory()
        self._positions: LastPositions | None = None
        self._last: dict[Callable[..., Any], tuple[tuple[object, ...], Any]] = {}
        self._by_type: dict[str, PlanningCache] = {}

    def of_type(self, gpu_type: str) -> "PlanningCache":
        """The cache of decisions on the part of the pool that has this GPU type; itself for "", the first type."""
        return self._by_type.setdefault(gpu_type, PlanningCache()) if gpu_type else self

    def last(self, function: Callable[[*Arguments], Answer], *arguments: *Arguments) -> Answer:
        """The result of a pure function, computed again unless the arguments equal those of the last call.

        Objects are compared by identity, numbers by value.
        """
        known = self._last.get(function)
        if known is None or not all(map(is_same, arguments, known[0])):
            known = self._last[function] = arguments, function(*arguments)
        answer: Answer = known[1]
        return answer

    def last_positions(self, topology: Topology, claimed_levels: tuple[Level, ...]) -> LastPositions:
        """The last placement on this topology, and its buddy blocks. claimed_levels: see `Blocks`."""
        known = self._positions
        if known is None or (known.topology, known.blocks.claimed_levels) != (topology, claimed_levels):
            self._positions = LastPositions(topology, claimed_levels)
        assert self._positions is not None
        return self._positions
