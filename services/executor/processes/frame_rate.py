"""How many messages a worker may send: each waits in its executor's memory until the next decision."""

from collections.abc import Callable

from elasticflow.shared.messages.worker_protocol.frames import BrokenChannel

FRAMES_PER_S = 100.0  # in the long run; a worker reports its progress twice a second, and each checkpoint
MAX_AT_ONCE = 1_000


class FrameRate:
    """Of one worker. clock: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._num_allowed, self._measured_at_s = float(MAX_AT_ONCE), clock()

    def count_one(self) -> None:
        """Raises BrokenChannel if the worker has sent too many."""
        now_s = self._clock()
        earned = (now_s - self._measured_at_s) * FRAMES_PER_S
        self._num_allowed, self._measured_at_s = min(self._num_allowed + earned, MAX_AT_ONCE) - 1.0, now_s
        if self._num_allowed < 0.0:
            raise BrokenChannel(f"it sends more than {FRAMES_PER_S:g} messages a second")
