"""`eflow replay` and `eflow simulate`: run the simulator as another process, because the client has no policies."""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NoReturn, cast

import typer

from elasticflow.cli.command_options import LedgerOptions, PoolOptions, run
from elasticflow.cli.option_table import rows_of, takes_tables
from elasticflow.cli.replay_options import AsJson, ReplayOptions
from elasticflow.cli.terminal_output import progress_bar
from elasticflow.client.ledger import stream_ledger, write_ledger
from elasticflow.shared.extras import require_extra
from elasticflow.shared.runtime.process.run_module import module_command


@takes_tables
def replay(
    old_file: Annotated[Path | None, typer.Argument(metavar="[FILE]", hidden=True)] = None,
    options: ReplayOptions = ReplayOptions(),
    ledger: LedgerOptions = LedgerOptions(),
    as_json: AsJson = False,
) -> None:
    """Fold the ledger and show the pool at that point; or retake every decision
    and compare.

    \b
    --policy OTHER compares with another policy, in two ways:
      exact     what it decides at each recorded state
      modelled  how the jobs end if it decides from --from SEQ on
    Taken from the record: commands, nodes, settings, failures, numbers of
    iterations and profiles. Decided again: admission, allocation, placement.
    Modelled: a resize stops a job for as long as starts took in the record
    (the median), then the job trains at its profiled throughput. The recorded
    policies run through the same model, so that its error shows. The model
    ends at the last deadline, with no later arrivals. No job requests GPUs: a
    rigid scheduler gives each the fewest that meet its deadline alone.

    \b
    Examples:
      eflow replay   # the pool now
      eflow replay --file run.ledger --until 120   # after message 120
      eflow replay --file run.ledger --at 2026-01-31T12:00:00Z --json
      eflow replay --file run.ledger --at +400   # 400 s after its begin
      eflow replay --follow   # all past events, then new ones
      eflow replay --file run.ledger --verify   # retake all decisions
      eflow replay --file run.ledger --follow --job j1   # one job, step by step
      eflow replay --policy edf --from 120   # as if EDF decided after that
    """
    words = [word for row in rows_of(options) for word in row.words(options)] + ["--json"] * as_json
    if (file := ledger.file or old_file) is not None:
        raise typer.Exit(_replayed(str(file), words))
    if options.follow and options.until is None and options.at is None:
        raise typer.Exit(_follow_live(words, ledger.where))
    with tempfile.TemporaryDirectory(prefix="eflow-") as folder:
        exported = Path(folder) / "live.ledger"
        with progress_bar("messages") as advance:
            run(lambda client: write_ledger(client, exported, on_message=advance), ledger.where)
        raise typer.Exit(_replayed(str(exported), words))


def _follow_live(options: list[str], where: PoolOptions) -> int:
    """Hand each message on as it arrives, until the user ends it."""
    simulator = start_simulator("replay", "-", *options, stdin=subprocess.PIPE)
    pipe = cast(BinaryIO, simulator.stdin)
    try:
        run(lambda client: stream_ledger(client, pipe), where)
    except ConnectionError:  # the simulator has ended, or has printed its error
        return simulator.wait()
    finally:
        with contextlib.suppress(OSError):
            pipe.close()
        simulator.wait()
    return 0


def _replayed(file: str, options: list[str]) -> int:
    """The simulator's exit code."""
    with start_simulator("replay", file, *options) as simulator:
        return simulator.wait()


def start_simulator(*arguments: str, stdin: int | None = None) -> "subprocess.Popen[Any]":
    """It shares our terminal, receives Ctrl-C too, and calls itself `eflow`. Raises MissingExtra."""
    return subprocess.Popen(_command(arguments), stdin=stdin, env=_environment())


def become_simulator(*arguments: str) -> NoReturn:
    """Replace this process by the simulator, so that a signal to this process id reaches the simulator."""
    os.execve(sys.executable, _command(arguments), _environment())


def _command(arguments: tuple[str, ...]) -> list[str]:
    require_extra("server", f"eflow {arguments[0]}")
    return list(module_command("elasticflow.simulator", *arguments))


def _environment() -> dict[str, str]:
    return {**os.environ, "EF_CALLED_AS": "eflow"}


SIMULATE_SETTINGS = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def simulate(context: typer.Context) -> None:
    """Run a trace of jobs through the scheduler on virtual time: what would be
    promised, met, resized. `eflow simulate --help` has the options.
    """
    become_simulator("simulate", *context.args)
