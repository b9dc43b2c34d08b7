"""`python -m benchmarks.engine.paired --base COMMIT`: a step of this code beside one of an earlier commit.

A worktree of the commit and this checkout measure in turn, each in processes of its own, and both beside plain DDP in
the same processes. So other load affects both alike. The ratio of a round is this code's step over the earlier one's.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from benchmarks.engine.parts import Row, in_ms, table_of

_ROOT = Path(__file__).parents[2]
_MODES = ("fast", "bitwise_8")
_MEASURE = """
import json, sys
from benchmarks.engine.steady import measure_steady
given = json.loads(sys.argv[1])
if __name__ == "__main__":
    print(json.dumps(measure_steady(given.pop("model"), **given | {"modes": tuple(given["modes"])})))
"""


def measure_paired(
    base: Path, models: Sequence[str], *, million_parameters: int, num_workers: int, rounds: int, steps: int
) -> list[Row]:
    """A row for each model and mode. base: a checkout of the earlier code. steps: of each mode in a round."""
    given = {"million_parameters": million_parameters, "num_workers": num_workers, "rounds": steps, "modes": _MODES}
    rows: list[Row] = []
    for model in models:
        pairs: list[tuple[Row, Row]] = []
        for number in track(range(rounds), model, console=Console(stderr=True)):
            order = (base, _ROOT) if number % 2 == 0 else (_ROOT, base)
            measured = {root: _measured(root, {"model": model, **given}) for root in order}
            pairs.append((measured[base], measured[_ROOT]))
        rows += [{"model": model, **given, "rounds": rounds, "steps": steps} | _compared(pairs, m) for m in _MODES]
    return rows


def _measured(root: Path, given: dict[str, Any]) -> Row:
    """The row that the code in the checkout at `root` measures."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "measure.py"
        script.write_text(_MEASURE)
        command = [sys.executable, str(script), json.dumps(given)]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        done = subprocess.run(command, cwd=root, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _compared(pairs: Sequence[tuple[Row, Row]], mode: str) -> Row:
    def median(values: Iterator[float]) -> float:
        return statistics.median(values)

    return {
        "mode": mode,
        "base_step_s": median(base[f"{mode}_step_s"] for base, _ in pairs),
        "step_s": median(now[f"{mode}_step_s"] for _, now in pairs),
        "base_over_plain": median(base[f"{mode}_ratio"] for base, _ in pairs),
        "over_plain": median(now[f"{mode}_ratio"] for _, now in pairs),
        "over_base": median(now[f"{mode}_step_s"] / base[f"{mode}_step_s"] for base, now in pairs),
        "cpu_over_base": median(now[f"{mode}_cpu_s"] / base[f"{mode}_cpu_s"] for base, now in pairs),
    }


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """A worktree of this repository, which is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "base"
        git = ["git", "-C", str(_ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(path), commit], check=True)
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


def main(
    base: Annotated[str, typer.Option(help="Compare with this commit.")],
    models: Annotated[str, typer.Option(help="Measure these models, separated by commas.")] = "gpt,perceptron",
    size: Annotated[int, typer.Option(min=1, help="Train models of so many million parameters.")] = 25,
    workers: Annotated[int, typer.Option(min=1, help="Train with so many workers.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Measure each code so many times, in turn.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Take so many steps of each mode in a round.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Compare a step of this code with that of an earlier commit, in turn on the same machine."""
    with worktree(base) as earlier:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=earlier, check=True, stdout=subprocess.PIPE, text=True
        )
        rows = measure_paired(
            earlier,
            models.split(","),
            million_parameters=size,
            num_workers=workers,
            rounds=rounds,
            steps=steps,
        )
    table = table_of(
        "One step: ms before and now, each over plain DDP, and now over before",
        *("model", "mode", "before", "now", "before / DDP", "now / DDP", "now / before", "of CPU time"),
    )
    for row in rows:
        ratios = (f"{row[name]:.3f}" for name in ("base_over_plain", "over_plain", "over_base", "cpu_over_base"))
        table.add_row(f"{row['model']} {size} M", row["mode"], *in_ms(row, "base_step_s", "step_s"), *ratios)
    Console(width=140).print(table)
    if out:
        out.write_text(json.dumps({"base": commit.stdout.strip(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    typer.run(main)
