"""`eflow report`: GPU-hours, decisions, promises and cost of each tenant over a period."""

import contextlib
import csv
import io
import re
from typing import Annotated

import typer

from elasticflow.cli.command_options import Json, LedgerOptions, run
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.option_values import deadline_of
from elasticflow.cli.terminal_output import print_json, progress_bar, say, say_line
from elasticflow.client.client import Client
from elasticflow.client.ledger import read_ledger
from elasticflow.history.tables import table
from elasticflow.history.usage_report import NoPrice, TenantUsage, UsageFold, total_of
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.times import clock_time, timestamp_of

# --- Prices of GPU-hours: the option, and what it says -------------------------------------------------

_PRICE = re.compile(r"(?:([^=,]+)=)?(\d+(?:\.\d+)?)")

Price = Annotated[
    str,
    typer.Option(
        "--price",
        metavar="TYPE=DOLLARS,...",
        help="Of a GPU-hour, by type: V100=2.48,P100=1.46; a number alone is for any other type.",
    ),
]


def prices_of(text: str) -> dict[str, float]:
    """Dollars a GPU-hour by type, of "V100=2.48,P100=1.46"; a number alone is the price of any other type, ""."""
    prices: dict[str, float] = {}
    for part in text.split(","):
        found = _PRICE.fullmatch(part.strip())
        if found is None or (found[1] or "") in prices:
            raise typer.BadParameter(f"{part.strip()!r} is not TYPE=DOLLARS, each type once", param_hint="--price")
        prices[found[1] or ""] = float(found[2])
    return prices


# --- report --------------------------------------------------------------------------------------------

_NUMBERS = {
    "ADMITTED": "num_admitted",
    "REJECTED": "num_rejected",
    "PROMISED": "num_promised",
    "EARLIER": "num_earlier",
    "KEPT": "num_kept",
    "BROKEN": "num_broken",
    "FAILED": "num_failed",
    "CANCELLED": "num_cancelled",
    "LIVE": "num_live",
}


@takes_tables
def report(
    since: Annotated[
        str,
        typer.Option("--since", metavar="WHEN", help="Begin: 7d (ago), 12h, or a time. Default: all."),
    ] = "",
    until: Annotated[str, typer.Option("--until", metavar="WHEN", help="End: 1d (ago), or a time. Default: now.")] = "",
    price: Price = "",
    ledger: LedgerOptions = LedgerOptions(),
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
    as_json: Json = False,
) -> None:
    """Report the GPU-hours, jobs, promises and cost of each tenant over a
    period, from the ledger.

    ADMITTED and REJECTED count decisions, PROMISED the admitted jobs with a
    promise, EARLIER the promises that were live when the period began. Each
    promise is in one column: KEPT if the job ended by its deadline, BROKEN if
    the deadline passed before, FAILED or CANCELLED if it ended so before its
    deadline, or LIVE. Padding loads do not count: the ledger has no single
    tasks.

    \b
    Examples:
      eflow report
      eflow report --since 30d --price V100=2.48,P100=1.46
      eflow report --since 2026-05-01 --until 2026-06-01 --csv > may.csv
      eflow report --file run.ledger --price 2 --json | jq .total.cost
    """
    if as_csv and as_json:
        raise typer.BadParameter("--json is another format", param_hint="--csv")
    prices = prices_of(price) if price else None
    entries = () if ledger.file is None else read_ledger(ledger.file)
    # what is not recorded yet is not used yet
    end_s = entries[-1][0].stored_at_s if entries else SystemClock().now_s()
    since_s = _moment(since, end_s, 0.0, "--since")
    until_s = min(_moment(until, end_s, end_s, "--until"), end_s)
    if since_s >= until_s:
        raise typer.BadParameter("the period ends before it begins", param_hint="--since")
    fold = UsageFold(since_s=since_s, until_s=until_s)
    if ledger.file is None:
        run(lambda client: _read(client, fold), ledger.where)
    for record, message in entries:
        fold.fold(record.sequence, record.stored_at_s, message)
    try:
        rows = fold.usage(prices)
    except NoPrice as error:
        raise typer.BadParameter(f"{error}; add it, or one number for all", param_hint="--price") from None
    if as_json:
        print_json({"since_s": since_s, "until_s": until_s, "tenants": list(rows), "total": total_of(rows)})
    elif as_csv:
        print(csv_of(rows), end="")
    elif rows:
        begin = f"from {clock_time(since_s, now_s=end_s)} " if since else ""
        say_line(f"{begin}to {clock_time(until_s, now_s=end_s)}")
        _show(rows)
    else:
        say_line("no job in this period")


async def _read(client: Client, fold: UsageFold) -> None:
    last = await client.last_sequence()
    with progress_bar("messages") as advance:
        async with contextlib.aclosing(client.entries(up_to=last)) as entries:
            async for stored, message in entries:
                fold.fold(stored.sequence, stored.stored_at_s, message)
                advance(stored.sequence, last)


def csv_of(rows: tuple[TenantUsage, ...]) -> str:
    """A line for each tenant, with a column for each GPU type of any of them."""
    types, has_cost = _types(rows), any(row.cost is not None for row in rows)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    by_type = [f"gpu_hours_{name or 'untyped'}" for name in types]
    writer.writerow(["tenant", *map(str.lower, _NUMBERS), "gpu_hours", *by_type, *(["cost"] if has_cost else [])])
    for row in rows:
        hours = [row.gpu_hours, *(row.gpu_hours_by_type.get(name, 0.0) for name in types)]
        cost = [f"{row.cost or 0.0:.2f}"] if has_cost else []
        numbers = (getattr(row, name) for name in _NUMBERS.values())
        writer.writerow([row.tenant, *numbers, *(f"{each:.4f}" for each in hours), *cost])
    return out.getvalue()


def _show(rows: tuple[TenantUsage, ...]) -> None:
    types, has_cost = _types(rows), any(row.cost is not None for row in rows)
    by_type = types if len(types) > 1 or any(types) else ()
    numbers = [name for name in _NUMBERS if name != "EARLIER" or any(row.num_earlier for row in rows)]
    columns = [*numbers, "GPU-HOURS", *(name or "UNTYPED" for name in by_type), *(["COST"] if has_cost else [])]
    shown = (*rows, total_of(rows)) if len(rows) > 1 else rows
    say(
        table(
            "TENANT",
            *columns,
            right=tuple(columns),
            rows=(
                (
                    row.tenant,
                    *(str(getattr(row, _NUMBERS[name])) for name in numbers),
                    f"{row.gpu_hours:.2f}",
                    *(f"{row.gpu_hours_by_type.get(name, 0.0):.2f}" for name in by_type),
                    *([f"${row.cost or 0.0:,.2f}"] if has_cost else []),
                )
                for row in shown
            ),
        )
    )


def _types(rows: tuple[TenantUsage, ...]) -> tuple[str, ...]:
    return tuple(sorted({gpu_type for row in rows for gpu_type in row.gpu_hours_by_type}))


def _moment(text: str, now_s: float, default_s: float, option: str) -> float:
    """A time, or a duration before now; the default if the option is not given."""
    if not text:
        return default_s
    moment = deadline_of(text, option)
    return now_s - moment.within if moment.within is not None else timestamp_of(moment.deadline or now_s)
