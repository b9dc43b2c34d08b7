"""`python -m simulator`: what the policies did, and would do, away from any cluster."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from shared.messages.export import BadExport, read_export, records_in
from shared.runtime.terminal import console, forget_stdout
from simulator import comparison_view
from simulator.comparison import compare
from simulator.interruption import INTERRUPTED
from simulator.policies import PLANNERS
from simulator.replay import Entry, Verification, folded, read_entries, up_to, verify
from simulator.trace_driven.command import app as simulate_app
from simulator.trace_driven.strategies import STRATEGIES
from simulator.view import as_object, difference_lines, event_rows, line, tables

STREAM = "-"
CALLED_AS = os.environ.get("EF_CALLED_AS", "python -m simulator")  # `eflow` hands its commands over

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode="rich")
app.add_typer(simulate_app, name="simulate")


@app.callback()
def simulator() -> None:
    """The scheduler's own policies, away from any cluster."""


def _instant_s(text: str) -> float:
    """Seconds since 1970, or ISO 8601; an instant without an offset is in UTC."""
    with contextlib.suppress(ValueError, OverflowError):  # beyond the years that people count, or nan
        return datetime.fromtimestamp(float(text), UTC).timestamp()
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither seconds since 1970 nor an ISO 8601 time like 2026-01-31T12:00:00Z"
        ) from None
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()


@app.command()
def replay(
    file: Annotated[
        Path,
        typer.Argument(
            help="A ledger, as `eflow events export FILE` writes it; -: one that comes in, followed."
        ),
    ],
    until: Annotated[int | None, typer.Option(help="Fold up to this sequence, included.", min=0)] = None,
    at: Annotated[
        str | None, typer.Option(help="Fold up to this instant: ISO 8601 (UTC) or seconds since 1970.")
    ] = None,
    verify_decisions: Annotated[
        bool, typer.Option("--verify", help="Take every decision again; exit 1 at the first that differs.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Step through, an event a line; on a terminal a key goes on.")
    ] = False,
    delay: Annotated[
        float | None, typer.Option(help="With --follow: seconds between messages, instead of a key.", min=0)
    ] = None,
    job: Annotated[str | None, typer.Option(help="Show only this job.")] = None,
    policy: Annotated[
        str,
        typer.Option(
            metavar="OTHER", help=f"Compare with another policy: {', '.join(STRATEGIES)}.", show_default=False
        ),
    ] = "",
    from_sequence: Annotated[
        int | None,
        typer.Option(
            "--from",
            metavar="SEQ",
            help="With --policy: OTHER decides after this sequence; default: all.",
            min=0,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object (a line each, with --follow).")
    ] = False,
) -> None:
    """Fold a recorded ledger and show the state then; or compare with what another policy makes of it.

    \b
    --policy OTHER compares with another policy, in two ways:
      exact     what it would have decided at each recorded state
      modelled  how all would have gone on had it decided from --from SEQ on
    Taken from the record: the wishes and when they were decided, nodes,
    settings, failures, how many iterations each job took, and the measured
    speeds, which are known from the start. Decided again: admission,
    allocation, placement. Modelled: a resize stops a job for as long as starts
    took in the record (the median), then it runs at its measured speed. The
    recorded policies run through the model, too: what it gets wrong shows
    beside the record. It goes on to the last deadline, as if nobody else came.
    Nobody asks for GPUs here: a rigid scheduler's jobs are given the fewest
    that meet their deadline alone.

    \b
    Examples:
      python -m simulator replay run.ledger                 the state at its end
      python -m simulator replay run.ledger --until 120     ... after sequence 120
      python -m simulator replay run.ledger --at 2026-01-31T12:00:00Z --json
      python -m simulator replay run.ledger --verify        decide again, compare
      python -m simulator replay run.ledger --follow --job j1
      python -m simulator replay run.ledger --policy edf --from 120
    """
    if policy and policy not in STRATEGIES:
        raise typer.BadParameter(f"{policy!r} is none of {', '.join(STRATEGIES)}", param_hint="--policy")
    if from_sequence is not None and not policy:
        raise typer.BadParameter("--from needs --policy")
    try:
        if str(file) == STREAM:
            _follow_stream(job, delay, as_json)
            return
        entries = _chosen(file, until, at)
        if policy:
            _show_comparison(entries, from_sequence or 0, policy, as_json)
        elif verify_decisions:
            _show_verification(verify(entries, PLANNERS), as_json)
        elif follow:
            _step_through(entries, job, delay, as_json)
        else:
            at_s = _instant_s(at) if at is not None else entries[-1].stored_at_s if entries else 0.0
            _show_state(entries, at_s, job, as_json)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:  # whoever read our output has seen enough
        forget_stdout()


def _chosen(file: Path, until: int | None, at: str | None) -> tuple[Entry, ...]:
    if until is not None and at is not None:
        raise typer.BadParameter("--until and --at exclude each other")
    try:
        with file.open("rb") as opened:
            entries = read_entries(read_export(opened))
    except OSError as error:
        raise _refused(f"cannot read {file}: {error.strerror or error}") from error
    except BadExport as error:
        raise _refused(f"{file}: {error}; `eflow events export FILE` writes one that is whole") from error
    if until is not None and until > len(entries):
        raise _refused(f"{file}: the ledger ends at sequence {len(entries)}, before {until}")
    return up_to(entries, sequence=until, at_s=_instant_s(at) if at is not None else None)


def _refused(sentence: str) -> typer.Exit:
    """Say why on the error stream; the exit to raise."""
    print(sentence, file=sys.stderr)
    return typer.Exit(2)


def _show_state(entries: tuple[Entry, ...], at_s: float, job_id: str | None, as_json: bool) -> None:
    state = folded(entries)
    if job_id is not None and state.job(job_id) is None:
        raise _refused(f"no job {job_id} up to sequence {state.sequence}")
    shown = as_object(state, at_s, job_id)
    if as_json:
        print(json.dumps(shown))
    else:
        console().print(tables(shown))


def _show_verification(verification: Verification, as_json: bool) -> None:
    difference, terminal = verification.difference, console()
    given = f" ({verification.num_given} of the operator are given)" if verification.num_given else ""
    if as_json:
        print(json.dumps(asdict(verification), default=str))
    elif difference is None:
        terminal.print(f"{verification.num_verified} decisions verified{given}")
    else:
        for text in difference_lines(difference):
            terminal.print(text)
        terminal.print(f"{verification.num_verified} decisions before it verified{given}")
    if difference is not None:
        raise typer.Exit(1)


def _show_comparison(entries: tuple[Entry, ...], from_sequence: int, policy: str, as_json: bool) -> None:
    if from_sequence >= len(entries):
        raise _refused(f"nothing follows sequence {from_sequence}: the ledger ends at {len(entries)}")
    comparison = compare(entries, from_sequence, policy)
    if as_json:
        print(json.dumps(comparison_view.as_object(comparison)))
    else:
        console().print(comparison_view.shown(comparison))


def _follow_stream(job_id: str | None, delay_s: float | None, as_json: bool) -> None:
    """A ledger that is still being written: its messages as they come, until their sender ends."""
    entries = (entry for record in records_in(sys.stdin.buffer) for entry in read_entries((record,)))
    try:
        _step_through(entries, job_id, delay_s, as_json)
    except BadExport as error:
        raise _refused(f"the ledger that came in: {error}") from error


def _step_through(entries: Iterable[Entry], job_id: str | None, delay_s: float | None, as_json: bool) -> None:
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
        if rows and by_key and typer.getchar()[-1] in "q\x04":  # whoever types ahead gets one step for all
            return
        if rows and delay_s:
            time.sleep(delay_s)


if __name__ == "__main__":
    app(prog_name=CALLED_AS)
