"""What a live run can measure, by the name that analogues.toml gives it. The setup of an analogue is its arguments."""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.papers.analogues import Analogue
from benchmarks.papers.live.accuracy import accuracy
from benchmarks.papers.live.changes import changes
from benchmarks.papers.live.lent_gpus import lent_gpus
from benchmarks.papers.live.padding import padding
from benchmarks.papers.live.three_jobs import three_jobs

MEASURES: Mapping[str, Callable[..., Mapping[str, float]]] = {
    "changes": changes,
    "lent_gpus": lent_gpus,
    "accuracy": accuracy,
    "three_jobs": three_jobs,
    "padding": padding,
}


def measure_part(analogue: Analogue, part: int) -> dict[str, Any]:
    """The numbers of one part, the load of the machine before and after it, and how long it took."""
    before, began_s = os.getloadavg()[0], time.monotonic()
    numbers = MEASURES[analogue.measure](**analogue.settings(part))
    return {
        "setup": analogue.settings(part),
        "numbers": dict(numbers),
        "load_average": [before, os.getloadavg()[0]],
        "wall_s": round(time.monotonic() - began_s, 1),
    }
