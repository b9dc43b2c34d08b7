"""Reports progress and speed to the executor, from a thread of its own.

The thread reports even while the training makes no progress, for example in a step that never returns. So silence means
a dead process, and `Alive` means a stuck one, or one that still starts, with what its code does. It writes its stacks
into the job's log, and the lines of users' code in which it hangs into the job's history. At its end the thread reports
the last steps, so that a failed job shows in which iteration it failed.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType

from elasticflow.services.executor.worker.process.channel import ExecutorLink
from elasticflow.services.executor.worker.process.commands import write_stacks_to_log
from elasticflow.services.executor.worker.process.users_process import PROCESS, places_of_threads
from elasticflow.shared.messages.timeouts import FailureTimeouts
from elasticflow.shared.messages.worker_protocol.from_worker import PHASE_S, Alive, Lagged, Progressed, Warned
from elasticflow.shared.runtime.process.logs import log

_PERIOD_S = 0.5
_MOST_PLACES = 3  # of users' code in which the threads of a worker hang
_RATE_WINDOW = 50  # steps: long enough to be steady, short enough to show a change


class Telemetry:
    """After half of a time-out without progress, the log gets the stacks of all threads, once. timeouts: None: not."""

    def __init__(self, channel: ExecutorLink, timeouts: FailureTimeouts | None = None) -> None:
        self._channel, self._trains = channel, False
        self._longest_start_s = math.inf if timeouts is None else timeouts.longest_start_s
        self._phase_s = min(PHASE_S, self._longest_start_s / 8)
        self._longest_step_s = math.inf if timeouts is None else timeouts.stall_timeout_s
        self._lock = threading.Lock()
        self._step_ends: deque[tuple[int, float]] = deque(maxlen=_RATE_WINDOW)  # (iteration, monotonic s)
        self._iteration = 0
        self._metrics: dict[str, float] = {}
        self._progressed_at_s = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._report, name="telemetry", daemon=True)

    def __enter__(self) -> "Telemetry":
        self._thread.start()
        PROCESS.report_progress = self.close
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Report the last steps, and end."""
        self._closed.set()
        self._thread.join()

    def training_began(self, iteration: int) -> None:
        """Training starts at this iteration; earlier steps do not count for the speed."""
        with self._lock:
            self._step_ends.clear()
            self._trains = True
            self._iteration = iteration
            self._progressed_at_s = time.monotonic()

    def step_ended(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """iteration: steps done. metrics: finite ones."""
        now_s = time.monotonic()
        with self._lock:
            self._iteration = iteration
            self._metrics = dict(metrics)
            self._progressed_at_s = now_s
            self._step_ends.append((iteration, now_s))

    def report_straggler(self, rank: int, slowdown: float, num_virtual_nodes: int) -> None:
        """rank: of a straggler in this generation, which rank 0 has detected. num_virtual_nodes: of the job."""
        self._channel.send(Lagged(rank=rank, slowdown=slowdown, num_virtual_nodes=num_virtual_nodes))

    def warn(self, warning: str) -> None:
        """Write a warning into the job's log and its history, of which the user asks `eflow explain`."""
        log.warning("job_warned", warning=warning)
        self._channel.send(Warned(warning=warning))

    def progressed(self) -> None:
        """Progress without a completed iteration."""
        with self._lock:
            self._progressed_at_s = time.monotonic()

    def _report(self) -> None:
        reported, ends, shown_at_s, phase, phase_since_s = 0, False, -1.0, "", time.monotonic()
        while not ends:
            ends = self._closed.wait(_PERIOD_S)
            with self._lock:
                iteration, metrics = self._iteration, self._metrics
                rate = _rate(self._step_ends)
                progressed_at_s, trains = self._progressed_at_s, self._trains
            now_s = time.monotonic()
            idle_s = now_s - progressed_at_s
            if (now := "" if trains else PROCESS.phase) != phase:
                phase, phase_since_s = now, now_s
            stacks_after_s = (self._longest_step_s if trains else self._longest_start_s) / 2
            if idle_s > stacks_after_s and shown_at_s != progressed_at_s and not ends:
                shown_at_s = progressed_at_s
                _write_stacks(idle_s)
                if places := places_of_threads():
                    where = f"no step ended for {idle_s:.0f} s; a worker is{','.join(places[:_MOST_PLACES])}"
                    self._channel.send(Warned(warning=where, is_own=True))
            if self._step_ends and iteration != reported:
                self._channel.send(Progressed(iteration=iteration, iterations_per_s=rate, metrics=metrics))
                reported = iteration
            elif not ends:
                shown = phase if now_s - phase_since_s >= self._phase_s else ""
                self._channel.send(Alive(iteration=iteration, seconds_since_progress=idle_s, phase=shown))


def _write_stacks(idle_s: float) -> None:
    write_stacks_to_log(f"no step ended for {idle_s:.0f} s")


def _rate(step_ends: deque[tuple[int, float]]) -> float | None:
    """Iterations per second between the oldest and the newest step end; None if there are fewer than two."""
    if len(step_ends) < 2:
        return None
    (first, first_s), (last, last_s) = step_ends[0], step_ends[-1]
    return (last - first) / max(last_s - first_s, 1e-6)
