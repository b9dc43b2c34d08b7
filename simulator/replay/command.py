"""`replay`: shows a recorded ledger, verifies its decisions or compares them with another policy's.

The policies are loaded after the file was read: a bad file is refused at once.
"""

import contextlib
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.replay_options import AsJson, ReplayOptions
from elasticflow.cli.terminal_output import with_progress
from elasticflow.shared.library_imports import INTERRUPTED
from elasticflow.shared.messages.event_summary import counted
from elasticflow.shared.messages.export import BadExport, LedgerRecord, read_export, records_in
from elasticflow.shared.runtime.process.standard_streams import forget_stdout
from elasticflow.shared.runtime.process.terminal import console

if TYPE_CHECKING:
    from elasticflow.simulator.replay.recorded_ledger import Entry

STREAM = "-"
CANNOT = 2  # exit code, as that of `eflow`
DIFFERS = 1  # exit code

app = typer.Typer(add_completion=False, rich_markup_mode="rich")


@app.command()
@takes_tables
def replay(
    file: Annotated[
        Path,
        typer.Argument(help="A ledger, as `eflow events export FILE` writes it; -: follow one from standard input."),
    ],
    options: ReplayOptions,
    as_json: AsJson = False,
) -> None:
    """Fold a recorded ledger and show the pool; or compare. `eflow replay --help`
    explains the options.
    """
    if options.from_sequence is not None and not options.policy:
        raise typer.BadParameter("--from needs --policy")
    if options.until is not None and options.at is not None:
        raise typer.BadParameter("--until and --at exclude each other")
    after_begin_s = _seconds_after_begin(options.at or "")
    at_s = None if options.at is None or after_begin_s is not None else _instant_s(options.at)
    try:
        if str(file) == STREAM:
            _follow_stream(options.job, options.delay, as_json)
            return
        records = _records(file)
        begin_s = records[0].stored_at_s if records else 0.0
        at_s = at_s if after_begin_s is None else begin_s + after_begin_s
        if options.at is not None and at_s is not None and at_s < begin_s:
            raise _refused(_before_begin(options.at, at_s, begin_s))
        entries = _chosen(records, file, options.until, at_s)
        if options.policy:
            _show_comparison(entries, options.from_sequence or 0, options.policy, as_json)
        elif options.verify:
            _show_verification(entries, records[: len(entries)], as_json)
        elif options.follow:
            _step_through(entries, options.job, options.delay, as_json)
        else:
            end_s = entries[-1].stored_at_s if entries else 0.0
            _show_state(entries, end_s if at_s is None else at_s, options.job, as_json)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:  # the reader of our output has closed it
        forget_stdout()


def _seconds_after_begin(text: str) -> float | None:
    """The seconds of "+400"; None of an instant."""
    is_relative = text.startswith("+") and text[1:].replace(".", "", 1).isdecimal()
    return float(text) if is_relative else None


def _before_begin(text: str, at_s: float, begin_s: float) -> str:
    from elasticflow.simulator.replay.state_tables import clock_time

    relative = f"; for {text} s after its begin write --at +{text}" if text.replace(".", "", 1).isdecimal() else ""
    return f"--at {text}: {clock_time(at_s)} is before the ledger, which begins at {clock_time(begin_s)}{relative}"


def _instant_s(text: str) -> float:
    """Seconds since 1970, or ISO 8601; an instant without an offset is in UTC."""
    try:
        with contextlib.suppress(ValueError, OverflowError):  # ISO, beyond the years of a datetime, or nan
            return datetime.fromtimestamp(float(text), UTC).timestamp()
        instant = datetime.fromisoformat(text)
        at_s = (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
        return datetime.fromtimestamp(at_s, UTC).timestamp()
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text!r} is no time: write 2026-01-31T12:00:00Z, +400 (seconds after the begin), or seconds since 1970"
        ) from None


def _chosen(
    records: tuple[LedgerRecord, ...], file: Path, until: int | None, at_s: float | None
) -> "tuple[Entry, ...]":
    if until is not None and until > len(records):
        raise _refused(f"{file}: the ledger ends at sequence {len(records)}, before {until}")
    from elasticflow.simulator.replay.recorded_ledger import read_entries, up_to

    return up_to(read_entries(records), sequence=until, at_s=at_s)


def _records(file: Path) -> tuple[LedgerRecord, ...]:
    try:
        with file.open("rb") as opened:
            return read_export(opened)
    except OSError as error:
        raise _refused(f"cannot read {file}: {error.strerror or error}") from error
    except BadExport as error:
        raise _refused(f"{file}: {error}; `eflow events export FILE` writes a complete one") from error


def _refused(sentence: str) -> typer.Exit:
    """Prints the reason to standard error. Returns the exit to raise."""
    print(f"eflow: {sentence}", file=sys.stderr)
    return typer.Exit(CANNOT)


def _show_state(entries: "tuple[Entry, ...]", at_s: float, job_id: str | None, as_json: bool) -> None:
    from elasticflow.simulator.replay.recorded_ledger import folded
    from elasticflow.simulator.replay.state_tables import as_object, tables

    state = folded(entries)
    if job_id is not None and state.job(job_id) is None:
        raise _refused(f"no job {job_id} up to sequence {state.sequence}")
    shown = as_object(state, at_s, job_id)
    if as_json:
        print(json.dumps(shown))
    else:
        console().print(tables(shown))


def _show_verification(entries: "tuple[Entry, ...]", records: tuple[LedgerRecord, ...], as_json: bool) -> None:
    from elasticflow.simulator.baselines.policy_catalogue import planners
    from elasticflow.simulator.replay.recorded_ledger import checked_chain
    from elasticflow.simulator.replay.retaken_decisions import verify
    from elasticflow.simulator.replay.state_tables import difference_lines

    verification, chain = verify(with_progress(entries, "messages"), planners()), checked_chain(records)
    difference, terminal = verification.difference, console()
    num_given = verification.num_given
    given = f" ({num_given} of the operator {'is' if num_given == 1 else 'are'} given)" if num_given else ""
    verified = counted(verification.num_verified, "decision")
    if as_json:
        print(json.dumps(asdict(verification) | {"chain": asdict(chain)}, default=str))
    elif difference is None:
        terminal.print(f"{verified} verified{given}")
    else:
        for text in difference_lines(difference):
            terminal.print(text)
        terminal.print(f"{verified} before it verified{given}")
    if not as_json:
        for found in chain.breaks:
            terminal.print(f"the ledger was changed: {found.in_words()}")
        if not chain.breaks:
            terminal.print(f"the chain of the ledger holds at {counted(chain.num_checked, 'decision')}")
    if difference is not None or chain.breaks:
        raise typer.Exit(DIFFERS)


def _show_comparison(entries: "tuple[Entry, ...]", from_sequence: int, policy: str, as_json: bool) -> None:
    from elasticflow.simulator.baselines.policy_catalogue import POLICY_NAMES
    from elasticflow.simulator.replay.comparison import compare, comparison_object, comparison_tables

    if policy not in POLICY_NAMES:
        raise typer.BadParameter(f"{policy!r} is none of {', '.join(POLICY_NAMES)}", param_hint="--policy")
    if from_sequence >= len(entries):
        raise _refused(f"nothing follows sequence {from_sequence}: the ledger ends at {len(entries)}")
    comparison = compare(entries, from_sequence, policy)
    if as_json:
        print(json.dumps(comparison_object(comparison)))
    else:
        console().print(comparison_tables(comparison))


def _follow_stream(job_id: str | None, delay_s: float | None, as_json: bool) -> None:
    """Show the messages of a ledger from standard input as they arrive, until their sender ends."""
    from elasticflow.simulator.replay.recorded_ledger import read_entries

    entries = (entry for record in records_in(sys.stdin.buffer) for entry in read_entries((record,)))
    try:
        _step_through(entries, job_id, delay_s, as_json)
    except BadExport as error:
        raise _refused(f"the ledger from standard input: {error}") from error


def _step_through(entries: "Iterable[Entry]", job_id: str | None, delay_s: float | None, as_json: bool) -> None:
    from elasticflow.simulator.replay.state_tables import event_rows, line

    terminal = console()
    by_key = delay_s is None and sys.stdin.isatty() and terminal.is_terminal and not as_json
    if by_key:
        print("any key: the next event; q: the end", file=sys.stderr)
    for entry in entries:
        rows = tuple(event_rows(entry, job_id))
        for row in rows:
            if as_json:
                print(json.dumps(row, default=str), flush=True)
            else:
                terminal.print(line(row), soft_wrap=True)
        if rows and by_key and typer.getchar()[-1] in "q\x04":  # keys typed ahead count as one step
            return
        if rows and delay_s:
            time.sleep(delay_s)
