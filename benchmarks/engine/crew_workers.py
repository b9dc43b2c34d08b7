"""The workers of a crew, and one switch of them to another generation."""

import os
import signal
from dataclasses import dataclass

from elasticflow.services.executor.processes.launcher import Exited, WorkerHandle
from elasticflow.shared.messages.worker_protocol.from_worker import ExitCode


@dataclass(eq=False)
class Worker:
    """One process. generation: the one in which it trains, 0 before that. iteration: steps done, as last reported."""

    handle: WorkerHandle
    generation: int = 0
    rank: int = 0
    iteration: int = 0
    interrupted: bool = False
    exited: Exited | None = None

    @property
    def has_state(self) -> bool:
        return self.generation > 0 and self.exited is None

    def signal(self, number: signal.Signals) -> None:
        """Send the signal to this process only, if it still runs."""
        if self.exited is None:
            os.kill(self.handle.pid, number)


@dataclass(frozen=True, slots=True)
class CrewSwitch:
    """A switch to a generation. by_rank: all workers of the rendezvous, the `size` members first."""

    generation: int
    size: int
    by_rank: tuple[Worker, ...]

    @property
    def members(self) -> tuple[Worker, ...]:
        return self.by_rank[: self.size]

    @property
    def is_complete(self) -> bool:
        leaving = self.by_rank[self.size :]
        return all(w.generation == self.generation and w.has_state for w in self.members) and all(
            w.exited is not None for w in leaving
        )

    @property
    def is_broken(self) -> bool:
        """A staying worker is gone, or a leaving one was killed."""
        return any(w.exited is not None for w in self.members) or any(
            w.exited is not None and w.exited.code != ExitCode.DONE for w in self.by_rank[self.size :]
        )
