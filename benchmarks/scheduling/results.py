"""The results so far: one JSON object, written after each result, so that a run can be resumed."""

import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.report import machine
from elasticflow.shared.errors import BadSettings


class Results:
    """values: by part. file: None to keep them in memory only. resume: go on from what the file holds, if anything."""

    def __init__(self, file: Path | None, *, resume: bool, **settings: object) -> None:
        self._file = file
        self.values: dict[str, Any] = {"machine": machine(), **settings, "costs": {}}
        if resume and file is not None and file.exists():
            known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            differing = [name for name, value in settings.items() if known.get(name) != value]
            if differing:
                raise BadSettings((f"{file} was measured with other settings: {', '.join(differing)}",))
            self.values = known

    def keep(self, part: str, value: object) -> None:
        """Write at once: an interrupted run loses only the result in progress."""
        self.values[part] = value
        if self._file is not None:
            unfinished = self._file.with_suffix(".unfinished")
            unfinished.write_text(self.text(), encoding="utf-8")
            unfinished.replace(self._file)

    def text(self) -> str:
        return json.dumps(self.values, indent=2) + "\n"

    @contextmanager
    def counted(self, part: str, workers: int = 1) -> Iterator[None]:
        """What it costs to measure a part, in all runs together."""
        began_cpu_s, began_s = _cpu_s(), time.perf_counter()
        try:
            yield
        finally:
            costs: dict[str, dict[str, float]] = self.values["costs"]
            before = costs.get(part, {"cpu_s": 0.0, "wall_s": 0.0})
            costs[part] = {
                "workers": workers,
                "cpu_s": before["cpu_s"] + _cpu_s() - began_cpu_s,
                "wall_s": before["wall_s"] + time.perf_counter() - began_s,
            }
            self.keep("costs", costs)


def _cpu_s() -> float:
    """The CPU time of this process and of those that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
