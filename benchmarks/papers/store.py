"""The numbers of each run, a file each, written as soon as the run ends, so that a benchmark can be resumed."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.papers.runs import Run
from elasticflow.shared.errors import BadSettings


class Store:
    """folder: of the report. inputs: a digest of all files that results depend on. wanted: the runs of the report.

    resume: keep the runs that are there; BadSettings if they come from other inputs. Otherwise delete those that are
    wanted, and all from other inputs.
    """

    def __init__(self, folder: Path, inputs: str, wanted: Iterable[Run], *, resume: bool) -> None:
        self._folder = folder / "runs"
        self._folder.mkdir(parents=True, exist_ok=True)
        about = folder / "inputs.json"
        is_other = about.exists() and json.loads(about.read_text(encoding="utf-8")) != {"digest": inputs}
        if resume and is_other:
            raise BadSettings(
                (f"{folder} has runs of other traces, throughputs or code; leave out --resume to run anew",)
            )
        if not resume:
            again = {f"{run.run_id}.json" for run in wanted}
            for file in self._folder.glob("*.json"):
                if is_other or file.name in again:
                    file.unlink()
        write_json(about, {"digest": inputs})
        self._known = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in self._folder.glob("*.json")}

    def keep(self, run: Run, result: Mapping[str, Any]) -> None:
        """Write at once: an interruption loses only the runs in progress."""
        self._known[run.run_id] = dict(result)
        write_json(self._folder / f"{run.run_id}.json", result)

    def numbers(self, run: Run) -> Mapping[str, float | None] | None:
        """The numbers of a run; None if it was not run yet."""
        result = self._known.get(run.run_id)
        return None if result is None else result["numbers"]

    @property
    def cpu_s(self) -> float:
        """The CPU time of all runs together."""
        return sum(result["cpu_s"] for result in self._known.values())


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Whole, or not at all."""
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(file)
