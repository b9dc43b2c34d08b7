"""`eflow map`: one function on each line of a file, as tasks of a padding load; `eflow suits`: whether that pays."""

import json
import subprocess
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from elasticflow.cli.command_options import Json, PoolOptions, TenantOptions, run, run_at
from elasticflow.cli.option_table import rows_of, takes_tables
from elasticflow.cli.option_values import duration_of, size_of
from elasticflow.cli.replay import start_simulator
from elasticflow.cli.results import OutputOptions, WithIndices, result_output
from elasticflow.cli.terminal_output import note, print_json, say_line
from elasticflow.client.client import Client
from elasticflow.client.command_requests import Package
from elasticflow.client.loads import MAX_STORED_BYTES, SentLoad
from elasticflow.errors import InputUnusable
from elasticflow.sdk.padding import LoadResults, in_order, load_name, named_code
from elasticflow.sdk.submission import load_function
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.syntax_problems import parsed_json

_STDIN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedLoad:
    """The inputs of `eflow map`, and the load that it opens for them."""

    inputs: Annotated[str, typer.Argument(metavar="INPUTS", help="File of lines; - is standard input.")] = _STDIN
    json_lines: Annotated[bool, typer.Option("--json-lines", help="Parse each line as JSON. Default: text.")] = False
    task: Annotated[str, typer.Option("--task", metavar="TIME", help="Seconds of one call, about: 0.5s, 2m.")] = "1s"
    overhead: Annotated[str, typer.Option("--overhead", metavar="TIME", help="The rest of each task.")] = "0s"
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="Of a GPU or CPU slot: 512MiB, 8GiB; 0 is any.")
    ] = "0"
    gpu_type: Annotated[
        str, typer.Option("--gpu-type", metavar="TYPE", help="Of the GPU, as `eflow nodes` shows it. Default: any.")
    ] = ""
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="A longer call has failed.")] = "1h"
    attempts: Annotated[int, typer.Option("--attempts", min=1, max=100, help="Calls that fail, of one input.")] = 3
    name: Annotated[str, typer.Option("--name", metavar="ID", help="Id of the load. Default: a fresh one.")] = ""

    def spec(self, task_function: str, code: Package | None) -> LoadSpec:
        """Raises typer.BadParameter."""
        return LoadSpec(
            task_function=task_function,
            code_digest=code.code_digest if code is not None else "",
            task_s=duration_of(self.task, "--task") or 0.0,
            overhead_s=duration_of(self.overhead, "--overhead") or 0.0,
            memory_bytes=size_of(self.memory, "--memory"),
            gpu_type=self.gpu_type,
            task_timeout_s=duration_of(self.timeout, "--timeout") or 0.0,
            max_attempts=self.attempts,
        )


@takes_tables
def map(
    target: Annotated[str, typer.Argument(metavar="FILE:FUNCTION|MODULE:FUNCTION", help="A function of one argument.")],
    load: MappedLoad = MappedLoad(),
    output_options: OutputOptions = OutputOptions(),
    detach: Annotated[
        bool, typer.Option("--detach", help="Send all inputs and print the load's id; see `eflow results`.")
    ] = False,
    where: TenantOptions = TenantOptions(),
    as_json: WithIndices = False,
) -> None:
    """Call a function on each line of a file, on GPUs that no job needs, and
    print each result as a line of JSON, in the order of the inputs.

    Lines are read as they are needed, and results are printed as they come.
    The code of the function is sent; results are unpickled here. A call may be
    executed twice. The first task that fails for good ends the load, and
    Ctrl-C cancels it. Exit code 1 if a task failed.

    With --detach, the results are kept until an hour after the end of the load.

    \b
    Examples:
      eflow map proteins.py:fold sequences.txt --task 10s > structures.jsonl
      find . -name '*.jpg' | eflow map images.py:describe --keep-going
      eflow map model.py:score --json-lines < samples.jsonl | jq .score
      eflow map proteins.py:fold sequences.txt --detach --name fold-1
    """
    if detach and output_options != OutputOptions():
        raise typer.BadParameter("`eflow results` has --out, --pickle and --keep-going", param_hint="--detach")
    function = load_function(target)
    task_function, code = named_code(function)
    spec = load.spec(task_function, code)
    endpoint = where.endpoint()
    load_id = load.name or load_name(task_function.partition(":")[2])
    lines = InputLines(load.inputs, json_lines=load.json_lines)

    async def send(client: Client) -> SentLoad:
        return await client.send_load(lines, spec, load_id=load_id, code=code)

    if detach:
        _show_sent(run_at(endpoint, send, tenant=where.tenant), as_json=as_json)
        return
    with (
        result_output(output_options, as_json=as_json) as output,
        closing(LoadResults(endpoint, where.tenant, spec, code, load_id, lines)) as results,
    ):
        output.write_all(in_order(results), results.pickled_value_of, lambda: lines.num_read)
    raise typer.Exit(1 if output.num_failed else 0)


class InputLines:
    """The inputs, read lazily: text without its newline, or the JSON value of each line. num_read: lines so far.

    Raises OSError at once, and InputUnusable at a line that is not JSON.
    """

    def __init__(self, source: str, *, json_lines: bool) -> None:
        self._source, self._json_lines = source, json_lines
        self.num_read = 0
        # A file object of its own: at the exit, Python waits for the lock of sys.stdin, which a blocked reader holds.
        self._file = open(  # noqa: SIM115 - the thread that reads it closes it
            0 if source == _STDIN else source,
            encoding="utf-8",
            errors="surrogateescape",  # names of files need not be UTF-8
            newline="\n",
            closefd=source != _STDIN,
        )

    def __iter__(self) -> Iterator[Any]:
        return self._lines()

    def _lines(self) -> Generator[Any]:
        with self._file as lines:
            for line in lines:
                self.num_read += 1
                text = line.removesuffix("\n")
                yield self._parsed(text) if self._json_lines else text

    def _parsed(self, text: str) -> Any:
        try:
            return parsed_json(text)
        except ValueError as error:
            source = "standard input" if self._source == _STDIN else self._source
            raise InputUnusable(
                "bad_input_line",
                f"line {self.num_read} of {source} is not JSON: {_without_line(str(error))}; correct it, or "
                "leave out --json-lines to pass lines as text",
            ) from None


def _without_line(problem: str) -> str:
    """The text is one line of a file, whose number is said already."""
    return problem.removeprefix("line 1, ")


def _show_sent(sent: SentLoad, *, as_json: bool) -> None:
    if as_json:
        print_json(sent)
    else:
        say_line(sent.load_id)
    if not sent.is_whole:
        note(
            f"eflow: only the first {sent.num_tasks:,} inputs were sent, because the results of a detached load may "
            f"have {MAX_STORED_BYTES >> 20} MiB; map the others after `eflow results {sent.load_id}`"
        )
        raise typer.Exit(1)


# --- suits ---------------------------------------------------------------------------------------------
# `eflow suits`: the cost model of padding loads on idle windows; the simulator computes it, as the client has none.


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTimes:
    """How long the parts of a task take."""

    task: Annotated[str, typer.Option("--task", metavar="TIME", help="Computation of one task: 10.9s, 2m.")]
    overhead: Annotated[str, typer.Option("--overhead", metavar="TIME", help="The rest of each task.")] = "0s"
    start_stop: Annotated[
        str, typer.Option("--start-stop", metavar="TIME", help="Start and end of a runner, once in each window.")
    ] = "0s"

    def in_seconds(self) -> dict[str, float]:
        """The value by the option of the simulator."""
        return {f"{row.word}-s": duration_of(getattr(self, row.name), row.word) or 0.0 for row in rows_of(self)}


@takes_tables
def suits(
    times: TaskTimes,
    windows: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV file of idle windows, gpu,start_s,end_s, instead of the pool's."),
    ] = None,
    price_ratio: Annotated[
        float | None,
        typer.Option(
            "--price-ratio",
            metavar="RATIO",
            min=0.0,
            max=1.0,
            show_default=False,
            help="Price of padding GPU time over that of ordinary GPU time. Default: the pool's; with --windows 0.1.",
        ),
    ] = None,
    where: PoolOptions = PoolOptions(),
    as_json: Json = False,
) -> None:
    """Predict whether padding tasks of this kind pay in the idle windows of the
    pool, as admission does for a load.

    Exit code 0 if they pay, 1 if not. Without any idle window so far, admission
    opens every load, and the exit code is 0.

    \b
    Examples:
      eflow suits --task 10.9s --overhead 2.8s --start-stop 7s
      eflow suits --task 1s --overhead 0.2s --windows windows.csv
      eflow suits --task 1s --overhead 0.2s --json | jq .best_task_s
    """
    times_s = times.in_seconds()
    if not times_s["--task-s"]:
        raise typer.BadParameter("a task must take time", param_hint="--task")
    if windows is not None:
        config, windows_s = PoolConfig(), []  # the simulator reads the file
    else:
        least_open_s = sum(times_s.values())
        config, windows_s = run(_config_and_windows(least_open_s), where)
    arguments = [
        *(word for option, time_s in times_s.items() for word in (option, str(time_s))),
        *("--price-ratio", str(config.padding_price_ratio if price_ratio is None else price_ratio)),
        *(["--windows", str(windows)] if windows is not None else []),
        *(["--json"] if as_json else []),
    ]
    with start_simulator("suits", *arguments, stdin=subprocess.PIPE) as simulator:
        simulator.communicate(json.dumps(windows_s).encode())
    raise typer.Exit(simulator.returncode)


def _config_and_windows(least_open_s: float) -> Callable[[Client], Awaitable[tuple[PoolConfig, list[float]]]]:
    """The pool's configuration, and the lengths of its idle windows in seconds, as admission takes them."""

    async def ask(client: Client) -> tuple[PoolConfig, list[float]]:
        client.require_operator()  # a tenant's view has no idle windows: all loads would seem to pay
        state = await client.state()
        return state.config, state.idle_windows_at(client.now_s(), least_open_s=least_open_s)

    return ask
