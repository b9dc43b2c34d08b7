"""The idle time of a simulated cluster: GPU-seconds by cause, and the idle windows of each GPU."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from elasticflow.shared.scheduling.allocation.allocation import IdleCause, idle_gpus
from elasticflow.shared.state.pool import CARRIES_A_JOB, PoolState
from elasticflow.simulator.padding.windows import IdleWindow

QUANTILES = (10, 50, 90)
HOUR_S = 3_600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTime:
    """windows: in the order of their ends; those of one instant by GPU. The last ones end with the simulation."""

    gpu_seconds: Mapping[IdleCause, float]
    windows: tuple[IdleWindow, ...]

    def numbers(self) -> Mapping[str, object]:
        """Idle GPU-hours by cause, and the distribution of the lengths of windows."""
        lengths_s = [window.length_s for window in self.windows]
        quantiles_s = np.percentile(lengths_s, QUANTILES).tolist() if lengths_s else [None] * len(QUANTILES)
        return {
            "idle_gpu_hours": sum(self.gpu_seconds.values()) / HOUR_S,
            **{f"idle_gpu_hours_{cause}": self.gpu_seconds[cause] / HOUR_S for cause in IdleCause},
            "idle_windows": len(lengths_s),
            **{f"idle_window_p{part}_s": length for part, length in zip(QUANTILES, quantiles_s, strict=True)},
        }


class IdleTimeMeter:
    """Measures while a simulation runs."""

    def __init__(self) -> None:
        self._gpu_seconds = dict.fromkeys(IdleCause, 0.0)
        self._windows = list[IdleWindow]()
        self._idle: Mapping[IdleCause, int] = {}
        self._since_s: Mapping[str, tuple[float, ...]] = {}
        self._at_s = 0.0

    def settled(self, state: PoolState, now_s: float) -> None:
        """All events and decisions of this instant are in the state."""
        self._advance(now_s)
        self._idle = idle_gpus(state)
        if state.idle_since_s is not self._since_s:
            self._end_windows(state.idle_since_s, now_s)
            self._since_s = state.idle_since_s

    def idle_time(self, ended_at_s: float) -> IdleTime:
        """The idle time of the simulation that ends now."""
        self._advance(ended_at_s)
        self._end_windows({}, ended_at_s)
        return IdleTime(gpu_seconds=self._gpu_seconds, windows=tuple(self._windows))

    def _advance(self, now_s: float) -> None:
        for cause, num_gpus in self._idle.items():
            self._gpu_seconds[cause] += num_gpus * (now_s - self._at_s)
        self._at_s = now_s

    def _end_windows(self, since_s: Mapping[str, tuple[float, ...]], now_s: float) -> None:
        """A window ends when its GPU is no longer idle since the same instant."""
        for node_id in sorted(self._since_s):
            before, after = self._since_s[node_id], since_s.get(node_id)
            if after is before:
                continue
            for gpu, start_s in enumerate(before):
                is_over = after is None or gpu >= len(after) or after[gpu] != start_s
                if is_over and start_s < CARRIES_A_JOB and start_s < now_s:
                    self._windows.append(IdleWindow(f"{node_id}:{gpu}", start_s, now_s))
