"""How long the work of a step takes, also on a device that does it later than it is told."""

import time

import torch


class Stopwatch:
    """From `start` to the last `lap`; on a GPU, of its own work between the two."""

    def __init__(self, device: torch.device) -> None:
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None
        if device.type == "cuda":
            self._events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._began_s = self._lap_s = 0.0
        self.start()

    def start(self) -> None:
        self._lapped = False
        self._began_s = time.monotonic()
        if self._events is not None:
            self._events[0].record()

    def lap(self) -> None:
        self._lapped = True
        self._lap_s = time.monotonic()
        if self._events is not None:
            self._events[1].record()

    def seconds(self) -> float:
        """Once the device has done what it was told; up to now if there was no lap."""
        if not self._lapped:
            self.lap()
        if self._events is None:
            return self._lap_s - self._began_s
        began, ended = self._events
        ended.synchronize()
        return began.elapsed_time(ended) / 1000
