"""The reference page "tested with", from the trials of recorded.json. `python -m tests.versions.page` writes it.

`python -m tests.versions --out tests/versions/recorded.json` makes and replaces the trials.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from packaging.version import Version

from tests.versions.matrix import ROOT, Dependency, dependencies
from tests.versions.trial import Outcome, Trial

RECORDED = Path(__file__).with_name("recorded.json")
PAGE = ROOT / "docs/reference/tested-with.md"
INTRODUCTION = """# Tested with

Each combination is installed from wheels alone into an environment of its own. It runs the tests of what uses each
dependency, simulated storms, and trainings that are resized (`tests/versions/checks.py`); none may be skipped. It
differs in one way from `constraints.txt`, which all other tests run with: in the Python, in torch, or in all direct
dependencies at once. Their lowest versions are the floors of `pyproject.toml`; the newest are what pip takes without
constraints. torch runs on CPUs. What is not in the first table has not been tried yet.

This page is generated: `make nightly` tries all combinations, `python -m tests.versions --help` says how to record
them, `python -m tests.versions.page` writes the page."""
WITHOUT_INTERPRETER = """`wheels exist`: no interpreter was there to run the tests. pip found wheels of all direct
dependencies and of what they need, and would have installed them without a compiler. Only `nkeys`, pure Python, comes
as sources."""


def recorded() -> list[Trial]:
    return [
        Trial(**{**each, "outcome": Outcome(each["outcome"])}) for each in json.loads(RECORDED.read_text()).values()
    ]


def page(trials: list[Trial]) -> str:
    parts = [
        INTRODUCTION,
        "## Combinations",
        _table(("combination", "Python", "torch", "outcome", "tests", "date"), map(_of_trial, trials)),
        WITHOUT_INTERPRETER,
        "## Direct dependencies",
        "Lowest and newest of the combinations that passed.",
        _table(
            ("dependency", "extra", "required", "lowest", "newest"),
            (_of_dependency(each, trials) for each in sorted(dependencies().values(), key=lambda each: each.name)),
        ),
    ]
    return "\n\n".join(parts) + "\n"


def passed_versions(name: str, trials: list[Trial]) -> list[Version]:
    """Of a dependency, in order."""
    passed = (trial for trial in trials if trial.outcome == Outcome.PASSED and name in trial.versions)
    return sorted({Version(trial.versions[name]) for trial in passed})


def _of_trial(trial: Trial) -> tuple[str, ...]:
    torch, num_tests = trial.versions.get("torch", ""), str(trial.num_tests or "")
    return (trial.name, trial.python, torch, trial.outcome, num_tests, trial.date)


def _of_dependency(dependency: Dependency, trials: list[Trial]) -> tuple[str, ...]:
    versions = passed_versions(dependency.name, trials)
    lowest, newest = (str(versions[0]), str(versions[-1])) if versions else ("not tested", "not tested")
    extras = ", ".join(f"`{extra}`" for extra in dependency.needed_by if extra)
    marker = f"; {dependency.marker}" if dependency.marker else ""
    return (dependency.name, extras, f"`{dependency.specifier}{marker}`", lowest, newest)


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    PAGE.write_text(page(recorded()))
