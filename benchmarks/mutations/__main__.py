"""`python -m benchmarks.mutations`: which mutations of the system a fast test catches.

The tests pass on a copy of the tree, and fail once it is mutated. The copy has the files of the working tree that git
knows or does not ignore; the checkout itself stays as it is. The scheduler's loops run interpreted, because each
mutation of them would have to be compiled again. Their numbers are then of numpy's types, so a test that writes them
into the ledger of a real host fails.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.mutations.mutation_list import MUTATIONS, Mutation
from benchmarks.regressions.pages import current_commit
from benchmarks.report import json_text, machine, today
from benchmarks.timing import children_cpu_s

# --- trials --------------------------------------------------------------------------------------------


TIMEOUT_S = 120  # of one test: a mutated loop may never end, and the machine may be busy
_OPTIONS = (
    "-x",
    "-q",
    "-rf",
    "--tb=no",
    "--no-header",
    "--rootdir=.",
    "-p",
    "no:cacheprovider",
    f"--timeout={TIMEOUT_S}",
)
_FAILED = "FAILED "


class DoesNotApply(ValueError):
    """The source has changed: the old text of a mutation is not there exactly once."""


class FailsUnmutated(RuntimeError):
    """Tests fail without a mutation, so that they can catch none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """failed: the first test that failed; "" if none did. cpu_s: seconds of processors."""

    is_complete: bool
    failed: str
    cpu_s: float
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """caught_by: the first test that failed. problem: why none did; "" if the mutation was caught."""

    mutation: Mutation
    caught_by: str = ""
    cpu_s: float = 0.0
    problem: str = ""


def mutated(source: str, mutation: Mutation) -> str:
    """The source with the mutation. Raises DoesNotApply."""
    if (count := source.count(mutation.old)) != 1:
        raise DoesNotApply(
            f"its text is {count} times in {mutation.file}: change the mutation as the source has changed"
        )
    return source.replace(mutation.old, mutation.new)


def files_of(root: Path) -> list[str]:
    """The files of a working tree that git knows or does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return [name for name in listed.stdout.split("\0") if name and os.path.lexists(root / name)]


class Copy:
    """A copy of a project, mutated for one trial after another."""

    def __init__(self, root: Path, files: Iterable[str], folder: Path) -> None:
        self._folder = folder
        for name in files:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target, follow_symlinks=False)

    def check(self, mutations: Iterable[Mutation]) -> None:
        """Raises FailsUnmutated unless their tests pass before any mutation."""
        tests = dict.fromkeys(test for mutation in mutations for test in mutation.tests)
        run = self._tests(tuple(tests))
        if not run.is_complete or run.failed:
            raise FailsUnmutated(f"without a mutation {run.failed or 'not all tests can run'}:\n{run.said}")

    def trial(self, mutation: Mutation) -> Trial:
        """Mutate the copy, run the tests, and restore it."""
        file = self._folder / mutation.file
        source = file.read_text()
        try:
            _write(file, mutated(source, mutation))
            run = self._tests(mutation.tests)
        except DoesNotApply as error:
            return Trial(mutation=mutation, problem=str(error))
        finally:
            _write(file, source)
        problem = "" if run.failed else "survives" if run.is_complete else f"its tests cannot run:\n{run.said}"
        return Trial(mutation=mutation, caught_by=run.failed, cpu_s=run.cpu_s, problem=problem)

    def _tests(self, tests: Sequence[str]) -> _Run:
        environment = {**os.environ, "PYTHONPATH": str(self._folder), "NUMBA_DISABLE_JIT": "1"}
        began_s = children_cpu_s()
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *_OPTIONS, *tests],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        failed = [line.removeprefix(_FAILED) for line in ran.stdout.splitlines() if line.startswith(_FAILED)]
        return _Run(
            is_complete=ran.returncode in (0, 1),
            failed=failed[0].split(" - ")[0] if failed else "",
            cpu_s=children_cpu_s() - began_s,
            said=ran.stdout,
        )


def _write(file: Path, source: str) -> None:
    """Write the source and delete its compiled module, which Python compares with it only by seconds and size."""
    Path(cache_from_source(str(file))).unlink(missing_ok=True)
    file.write_text(source)


# --- the command ---------------------------------------------------------------------------------------


ROOT = Path(__file__).resolve().parents[2]
MEASURED = ("elasticflow", "services", "shared", "simulator", "testbed", "tests")  # the folders
HEADER = "| mutation | in | a user would lose | caught by | CPU s |\n|---|---|---|---|---|"


def row(trial: Trial) -> str:
    """A row of the table. It has only the name of the test, whose file is among those of the mutation."""
    mutation = trial.mutation
    caught = f"**{trial.problem.splitlines()[0]}**" if trial.problem else f"`{_code(trial.caught_by.split('/')[-1])}`"
    return f"| {mutation.name} | `{mutation.file}` | {mutation.loses} | {caught} | {trial.cpu_s:.1f} |"


def page(trials: Sequence[Trial], commit: str) -> str:
    """The results, in Markdown."""
    num_caught = f"{sum(not trial.problem for trial in trials)} of {len(trials)}"
    cpu_s = sum(trial.cpu_s for trial in trials)
    rows = "\n".join(map(row, trials))
    return f"""# Mutations that the tests catch

- Measured on {today()} at `{commit}`: {", ".join(f"`{folder}`" for folder in MEASURED)}.

`python -m benchmarks.mutations --markdown benchmarks/results/mutations.md` wrote this page. It applies each mutation to
a copy of the tree, runs the named tests until the first one fails, and restores the copy. Before that, all of these
tests pass on the copy. The scheduler's loops run interpreted, so that no mutation of them is compiled.

On {machine()}, **{num_caught} mutations are caught**, in {cpu_s:.0f} seconds of CPU beside the run on the
unchanged copy. A mutation that survives, or does not apply any more, makes the command fail.

{HEADER}
{rows}
"""


def as_json(trials: Iterable[Trial], commit: str) -> dict[str, Any]:
    return {
        "date": today(),
        "commit": commit,
        "machine": machine(),
        "mutations": [
            {
                "name": trial.mutation.name,
                "file": trial.mutation.file,
                "loses": trial.mutation.loses,
                "caught_by": trial.caught_by,
                "problem": trial.problem,
                "cpu_s": round(trial.cpu_s, 2),
            }
            for trial in trials
        ],
    }


def _code(text: str) -> str:
    """Within a cell of a table."""
    return text.replace("|", "\\|")


def _chosen(names: Sequence[str]) -> list[Mutation]:
    known = {mutation.name: mutation for mutation in MUTATIONS}
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(f"no mutation is called {unknown[0]}: --list names them", param_hint="--only")
    return [known[name] for name in dict.fromkeys(names or known)]


def main(
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Try this one; may be repeated.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="Print the names, and try none.")] = False,
    alone: Annotated[bool, typer.Option("--json", help="Only the JSON object, on standard output.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write the page of results to this file.")] = None,
) -> None:
    """Try mutations of the system on a temporary copy of the tree: a fast test must catch each of them.

    Exit code 1 if one survives, if one does not apply to the source any more, or if its tests fail without it.
    """
    chosen = _chosen(only or ())
    if listing:
        print("\n".join(f"{mutation.name}: {mutation.loses}" for mutation in chosen))
        return
    commit, trials = current_commit(), list[Trial]()
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = Copy(ROOT, files_of(ROOT), Path(folder))
        try:
            copy.check(chosen)
        except FailsUnmutated as error:
            print(error, file=sys.stderr)
            raise typer.Exit(1) from None
        if not alone:
            print(HEADER, flush=True)
        for mutation in chosen:
            trials.append(trial := copy.trial(mutation))
            if not alone:
                print(row(trial), flush=True)
    text = json_text(as_json(trials, commit), out)
    if alone:
        print(text)
    if markdown:
        markdown.write_text(page(trials, commit))
    for trial in trials:
        if trial.problem:
            print(f"{trial.mutation.name}: {trial.problem}", file=sys.stderr)
    raise typer.Exit(int(any(trial.problem for trial in trials)))


if __name__ == "__main__":
    typer.run(main)
