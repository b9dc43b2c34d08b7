"""`eflow results`: the stored results of a load that `eflow map --detach` has sent."""

import json
import pickle
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from elasticflow.cli import completion
from elasticflow.cli.command_options import PoolOptions, remember_json, run_at
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.terminal_output import note
from elasticflow.client.client import Client
from elasticflow.errors import NotPrintable, ResultFileUnusable, TaskError, unknown_load
from elasticflow.sdk.padding import ReceivedResults, in_order
from elasticflow.shared.messages.padding_tasks import TaskResult

# --- The results of a padding load on stdout or in files, and its progress on stderr -------------------

PickledValueOf = Callable[[TaskResult], bytes]  # raises TaskError, ResultFileUnusable
WithIndices = Annotated[
    bool,
    typer.Option(
        "--json",
        callback=remember_json,
        help='Print {"index": ..., "value": ...} for each task; "error" instead of "value" for a failed one.',
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """Options: where results go, and whether a failed task ends the command."""

    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", show_default=False, help="Write the results there. Default: stdout."),
    ] = None
    pickle_dir: Annotated[
        Path | None,
        typer.Option(
            "--pickle",
            metavar="DIR",
            show_default=False,
            help="Write each result to DIR/INDEX.pickle, not unpickled, and print the path in its place.",
        ),
    ] = None
    keep_going: Annotated[
        bool,
        typer.Option("--keep-going", help="Report failed tasks on stderr and continue; exit code 1 at the end."),
    ] = False


class ResultOutput:
    """Prints one JSON value for each result: what the task returned, or with as_json a map with its index.

    num_failed: failed tasks, and results that cannot be printed. num_unprinted: the latter alone.
    """

    def __init__(self, out: TextIO, *, as_json: bool, pickle_dir: Path | None, keep_going: bool) -> None:
        self._out, self._as_json, self._pickle_dir, self._keep_going = out, as_json, pickle_dir, keep_going
        self.num_failed = self.num_unprinted = 0

    def write_all(
        self, results: Iterable[TaskResult], pickled_value_of: PickledValueOf, num_expected: Callable[[], int]
    ) -> None:
        """Each result as soon as it is there. Raises TaskError, NotPrintable, ResultFileUnusable unless keep_going."""
        with _progress(num_expected, is_shown=not self._out.isatty()) as advance:
            for result in results:
                self._write(result, pickled_value_of)
                advance()

    def _write(self, result: TaskResult, pickled_value_of: PickledValueOf) -> None:
        fields: dict[str, Any] = {"index": result.index}
        try:
            text = self._value_as_json(result.index, pickled_value_of(result))
        except (TaskError, NotPrintable, ResultFileUnusable) as error:
            if not self._keep_going:
                raise
            self.num_failed += 1
            self.num_unprinted += not isinstance(error, TaskError)
            note(f"eflow: {error}")
            if not self._as_json:
                return
            line = json.dumps(fields | {"error": result.error or str(error)})
        else:
            line = f'{{"index": {result.index}, "value": {text}}}' if self._as_json else text
        print(line, file=self._out, flush=True)

    def _value_as_json(self, index: int, pickled: bytes) -> str:
        if self._pickle_dir is None:
            return _as_json(index, pickled)
        file = self._pickle_dir / f"{index}.pickle"
        file.write_bytes(pickled)
        return json.dumps(str(file))


@contextmanager
def result_output(chosen: OutputOptions, *, as_json: bool) -> Generator[ResultOutput]:
    """Makes the folder of pickled results. Raises OSError."""
    if chosen.pickle_dir is not None:
        chosen.pickle_dir.mkdir(parents=True, exist_ok=True)
    file = nullcontext(sys.stdout) if chosen.out is None else chosen.out.open("w", encoding="utf-8")
    with file as out:
        yield ResultOutput(out, as_json=as_json, pickle_dir=chosen.pickle_dir, keep_going=chosen.keep_going)


def _as_json(index: int, pickled: bytes) -> str:
    """Raises NotPrintable. Unpickling calls code of the load's tenant, which may raise anything."""
    try:
        return json.dumps(pickle.loads(pickled), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotPrintable(index, str(error)) from None
    except Exception as error:
        raise NotPrintable(index, f"unpickling failed: {type(error).__name__}: {error}") from None


@contextmanager
def _progress(num_expected: Callable[[], int], *, is_shown: bool) -> Generator[Callable[[], None]]:
    """A bar on stderr, if that is a terminal and is_shown. Yields what counts one result more."""
    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.completed:,}/{task.total:,}"), TimeElapsedColumn())
    # Results go to stdout as they are: rich would redirect them to stderr.
    bar = Progress(*columns, console=console, disable=not (is_shown and console.is_terminal), redirect_stdout=False)
    with bar:
        row = bar.add_task("", total=num_expected())
        yield lambda: bar.update(row, advance=1, total=num_expected())


# --- results -------------------------------------------------------------------------------------------


@takes_tables
def results(
    load_id: Annotated[str, typer.Argument(metavar="LOAD", autocompletion=completion.loads)],
    as_completed: Annotated[
        bool, typer.Option("--as-completed", help="Print in the order of their ends. Default: of the inputs.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete the results once all are printed.")] = False,
    output_options: OutputOptions = OutputOptions(),
    where: PoolOptions = PoolOptions(),
    as_json: WithIndices = False,
) -> None:
    """Print the results of a detached load as lines of JSON, wait until it has
    ended, then delete them.

    Results are kept until an hour after the end of the load. Those of a
    cancelled load are deleted at once. Exit code 1 if a task failed, if
    results are missing, or while the `eflow map` of the load still runs.

    Results are unpickled here, which executes code of the load's tenant: read
    only loads that you trust, or take --pickle.

    \b
    Examples:
      eflow results fold-1
      eflow results fold-1 --as-completed --json --keep-going
      eflow results fold-1 --pickle results --keep
    """
    endpoint = where.endpoint()

    async def look(client: Client) -> int:
        loads = (await client.state()).loads
        load = loads.get(load_id)
        if load is None:
            raise unknown_load(load_id, endpoint.pool, loads)
        return load.num_tasks or 0

    num_tasks = run_at(endpoint, look)
    with (
        result_output(output_options, as_json=as_json) as output,
        closing(ReceivedResults(endpoint, "", load_id, lambda client: client.stored_results(load_id))) as stored,
    ):
        output.write_all(stored if as_completed else in_order(stored), stored.pickled_value_of, lambda: num_tasks)
    if not (keep or output.num_unprinted):
        run_at(endpoint, lambda client: client.delete_stored_results(load_id))
    raise typer.Exit(1 if output.num_failed else 0)
