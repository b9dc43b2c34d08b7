"""`eflow replay`: hands the ledger over to the simulator."""

import contextlib
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated, BinaryIO, cast

import typer

from elasticflow.cli.options import DataDir, NatsUrl, Pool, run
from elasticflow.cli.simulator import start_simulator
from elasticflow.ledger_file import stream_ledger, write_ledger


def replay(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="An exported ledger. Default: the live one, exported on the fly."
        ),
    ] = None,
    until: Annotated[
        int | None, typer.Option("--until", min=0, metavar="SEQ", help="Fold up to this sequence, included.")
    ] = None,
    at: Annotated[
        str,
        typer.Option("--at", metavar="TIME", help="Fold up to this instant: ISO 8601 or seconds since 1970."),
    ] = "",
    verify: Annotated[
        bool, typer.Option("--verify", help="Take every decision again; exit 1 at the first that differs.")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Step through, an event a line; the live one goes on. A file on a terminal: by key.",
        ),
    ] = False,
    delay: Annotated[
        float | None, typer.Option("--delay", min=0, metavar="S", help="With --follow: seconds a step.")
    ] = None,
    job: Annotated[str, typer.Option("--job", metavar="JOB", help="Show only this job.")] = "",
    policy: Annotated[
        str,
        typer.Option(
            "--policy", metavar="OTHER", help="Compare with another policy: edf, tiresias, pollux, ..."
        ),
    ] = "",
    from_sequence: Annotated[
        int | None,
        typer.Option("--from", min=0, metavar="SEQ", help="With --policy: OTHER decides after this message."),
    ] = None,
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value instead of tables.")] = False,
) -> None:
    """Fold the ledger and show the pool as it was; or take every decision again
    and compare.

    \b
    --policy OTHER: what another policy would have decided at each recorded
    state, and how the jobs would have fared had it decided from --from on.
    Wishes, nodes, settings, failures and measured speeds are taken from the
    record; admission, allocation and placement are decided again; training
    is modelled.

    \b
    Examples:
      eflow replay                                the pool as it is now
      eflow replay run.ledger --until 120         after message 120
      eflow replay --follow                       all that was, and what comes
      eflow replay run.ledger --verify            decide everything again
      eflow replay run.ledger --follow --job j1   one job, step by step
      eflow replay --policy edf --from 120        had EDF decided after that
    """
    options: list[str] = []
    for option, value in (
        ("--until", until),
        ("--at", at or None),
        ("--delay", delay),
        ("--job", job or None),
        ("--policy", policy or None),
        ("--from", from_sequence),
    ):
        options += [] if value is None else [option, str(value)]
    for option, wanted in (("--verify", verify), ("--follow", follow), ("--json", as_json)):
        options += [option] if wanted else []
    if file is not None:
        raise typer.Exit(_replayed(str(file), options))
    if follow and until is None and not at:
        raise typer.Exit(_follow_live(options, nats_url=nats_url, pool=pool, data_dir=data_dir))
    with tempfile.TemporaryDirectory(prefix="eflow-") as folder:
        exported = Path(folder) / "live.ledger"
        run(lambda client: write_ledger(client, exported), nats_url=nats_url, pool=pool, data_dir=data_dir)
        raise typer.Exit(_replayed(str(exported), options))


def _follow_live(options: list[str], *, nats_url: str, pool: str, data_dir: Path | None) -> int:
    """Hand each message on as it comes, until somebody ends it."""
    simulator = start_simulator("replay", "-", *options, stdin=subprocess.PIPE)
    pipe = cast(BinaryIO, simulator.stdin)
    try:
        run(lambda client: stream_ledger(client, pipe), nats_url=nats_url, pool=pool, data_dir=data_dir)
    except ConnectionError:  # the simulator has had enough, or has said why not
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
