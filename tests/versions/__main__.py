"""`python -m tests.versions`: each Python, the lowest and newest dependencies, the oldest and newest torch, in turn."""

import json
import platform
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tests.versions.matrix import combinations, interpreters
from tests.versions.trial import Outcome, Trial, try_out


def main(
    only: Annotated[list[str] | None, typer.Option(help="Try this combination alone; may be repeated.")] = None,
    is_list: Annotated[bool, typer.Option("--list", help="Only print the combinations.")] = False,
    out: Annotated[Path | None, typer.Option(help="A JSON file of trials; those tried now replace theirs.")] = None,
) -> None:
    """Install each combination into an environment of its own, one at a time, and run the tests of its dependencies.

    Exits with 1 if one fails. A version that the index does not have is no failure.
    """
    default = ".".join(platform.python_version_tuple()[:2])
    found = combinations(interpreters(), default)
    if unknown := sorted({*(only or ())} - {each.name for each in found}):
        sys.exit(f"unknown: {', '.join(unknown)}; known: {', '.join(each.name for each in found)}")
    chosen = [each for each in found if not only or each.name in only]
    if is_list:
        for each in chosen:
            print(each.name, each.interpreter or "no interpreter", sep="\t")
        return
    trials: list[Trial] = []
    for each in chosen:
        trials.append(trial := try_out(each))
        print(f"{trial.name}: {trial.outcome}\n{trial.reason}", flush=True)
        if out:
            _record(trial, out)
    Console(width=140).print(_table(trials))
    print(json.dumps([trial.as_json() for trial in trials], indent=2))
    sys.exit(any(trial.outcome == Outcome.FAILED for trial in trials))


def _record(trial: Trial, file: Path) -> None:
    """As it grows: a long run that ends early keeps what it has."""
    recorded: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(recorded | {trial.name: trial.as_json()}, indent=2) + "\n")


def _table(trials: list[Trial]) -> Table:
    table = Table(title="Tested versions")
    for column in ("combination", "Python", "outcome", "tests", "torch", "why"):
        table.add_column(column)
    for trial in trials:
        reason = trial.reason.strip().rpartition("\n")[2]
        torch = trial.versions.get("torch", "")
        table.add_row(trial.name, trial.python, trial.outcome, str(trial.num_tests or ""), torch, reason)
    return table


if __name__ == "__main__":
    typer.run(main)
