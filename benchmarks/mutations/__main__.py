"""`python -m benchmarks.mutations`: which mutations of the system a fast test catches."""

import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.mutations.mutation_list import MUTATIONS, Mutation
from benchmarks.mutations.trials import Copy, FailsUnmutated, Trial, files_of
from benchmarks.regressions.pages import current_commit
from benchmarks.report import machine, today

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
    text = json.dumps(as_json(trials, commit), indent=2)
    if alone:
        print(text)
    if out:
        out.write_text(text + "\n")
    if markdown:
        markdown.write_text(page(trials, commit))
    for trial in trials:
        if trial.problem:
            print(f"{trial.mutation.name}: {trial.problem}", file=sys.stderr)
    raise typer.Exit(int(any(trial.problem for trial in trials)))


if __name__ == "__main__":
    typer.run(main)
