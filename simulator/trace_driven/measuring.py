"""What the pool hears of its jobs where speeds are not what curves say: how fast each is, and how far."""

from collections.abc import Callable

from shared.messages.events import JobProgressed
from simulator.engine import Engine
from simulator.trace_driven import facts
from simulator.trace_driven.world import Training, World

FIRST_MEASURED_S = 60.0  # of training


class Measuring:
    """fold: says a fact; soon: lets the policies be asked."""

    def __init__(
        self,
        engine: Engine,
        world: World,
        *,
        fold: Callable[[JobProgressed], None],
        soon: Callable[[], None],
    ) -> None:
        self._engine, self._world, self._fold, self._soon = engine, world, fold, soon

    def begin(self, training: Training) -> None:
        """Its speed is told after a while, and again after as long as it has trained by then."""
        self._measure_after(training, FIRST_MEASURED_S)

    def report(self) -> None:
        """How far each job is: not what its curve says."""
        now_s = self._engine.now_s
        for training in self._world.trainings.values():
            if training.starts_s < now_s:
                self._fold(facts.progressed(training, now_s))

    def _measure_after(self, training: Training, wait_s: float) -> None:
        self._engine.after(wait_s, lambda: self._measure(training, wait_s))

    def _measure(self, training: Training, waited_s: float) -> None:
        if self._world.is_present(training):
            self._fold(facts.progressed(training, self._engine.now_s, measured=True))
            self._measure_after(training, 2 * waited_s)
            self._soon()
