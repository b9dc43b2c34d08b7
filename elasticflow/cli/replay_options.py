"""Options of `replay`, declared once for `eflow replay` and for the command of the simulator that it runs."""

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """What is shown of a ledger, or compared with it."""

    until: Annotated[
        int | None, typer.Option("--until", min=0, metavar="SEQ", help="Fold up to this sequence, included.")
    ] = None
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="Fold up to this instant: ISO 8601 (UTC), +400 (seconds after the begin), or seconds since 1970.",
            show_default=False,
        ),
    ] = None
    verify: Annotated[
        bool, typer.Option("--verify", help="Retake every decision; exit 1 at the first that differs.")
    ] = False
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Print one line for each event. A live ledger continues with new events; in a file, a key steps.",
        ),
    ] = False
    delay: Annotated[
        float | None,
        typer.Option("--delay", min=0, metavar="S", help="With --follow: seconds between steps, instead of a key."),
    ] = None
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Show only this job.")] = None
    policy: Annotated[
        str | None,
        typer.Option("--policy", metavar="OTHER", help="Compare with another policy: edf, tiresias, gandiva, ..."),
    ] = None
    from_sequence: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=0,
            metavar="SEQ",
            help="With --policy: OTHER decides after this sequence. Default: from the start.",
        ),
    ] = None


AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON value, with --follow one a line, instead of tables.")
]
