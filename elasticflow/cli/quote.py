"""`eflow quote`."""

from dataclasses import replace
from typing import Annotated

import typer

from elasticflow.cli.command_options import Json, SeveralPoolsOptions, run, where_words
from elasticflow.cli.decision_output import (
    show_quote,
    show_reserved,
)
from elasticflow.cli.job_options import SubmissionOptions
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.option_values import duration_of, end_of
from elasticflow.cli.several_pools import quote_of_pools
from elasticflow.cli.terminal_output import plain, print_json, say_line
from elasticflow.client.client import Client
from elasticflow.sdk.submission import quotable, with_code
from elasticflow.shared.messages.events import DeadlineQuoted, QuoteRejected, QuoteReserved
from elasticflow.shared.runtime.process.clock import SystemClock


@takes_tables
def quote(
    context: typer.Context,
    options: SubmissionOptions,
    reserve: Annotated[
        str,
        typer.Option("--reserve", metavar="TIME", help="Reserve the quote for 60s, 5m, ...; at most 10m."),
    ] = "",
    where: SeveralPoolsOptions = SeveralPoolsOptions(),
    as_json: Json = False,
) -> None:
    """Quote the earliest deadline that admission would promise a job now.

    The command submits no job, and reserves GPUs only with --reserve. Exit code
    1 if no deadline can be quoted, for example because the job's speed was never
    measured, or if it is later than --deadline. It runs none of the job's code:
    --secret is taken over into the printed command, and no value of it is read.

    \b
    Examples:
      eflow quote train.py
      eflow quote train.py --deadline 10m   # would that be promised?
      eflow quote train.py:Digits --batch 256 --iterations 3000 --json
      eflow quote train.py --reserve 60s
      eflow quote train.py --deadline 10m --pools east,west
    """
    now_s = SystemClock().now_s()
    options = replace(options, where=where_words(context, where)).checked(now_s)
    wanted_s = end_of(options.deadline, "--deadline", now_s) if options.deadline else None
    reserved_s = duration_of(reserve, "--reserve")
    job, code = options.load()
    ready = with_code(quotable(options.apply(job)), code)

    if where.pools:
        if reserved_s is not None:
            raise typer.BadParameter("a reservation is in one pool; name it with --pool", param_hint="--reserve")
        raise typer.Exit(quote_of_pools(ready.spec, options, where, wanted_s=wanted_s, as_json=as_json))

    async def ask(client: Client) -> DeadlineQuoted | QuoteReserved | QuoteRejected:
        if reserved_s is not None:
            return await client.reserve(ready.spec, duration=reserved_s)
        return await client.quote(ready.spec)

    quoted = run(ask, where)
    if not isinstance(quoted, DeadlineQuoted):
        reserved = isinstance(quoted, QuoteReserved)
        is_kept = isinstance(quoted, QuoteReserved) and (wanted_s is None or quoted.deadline_s <= wanted_s)
        print_json({"held": reserved, **plain(quoted)}) if as_json else show_reserved(quoted, options)
        raise typer.Exit(0 if is_kept else 1)
    earliest_s = quoted.earliest_deadline_s
    is_kept = earliest_s is not None and (wanted_s is None or earliest_s <= wanted_s)
    if as_json:
        print_json(plain(quoted) | ({} if wanted_s is None else {"deadline_s": wanted_s, "would_be_promised": is_kept}))
    elif earliest_s is None:
        say_line(f"no quote: {quoted.explanation}", "yellow")
    else:
        show_quote(quoted, earliest_s, options, wanted_s)
    raise typer.Exit(0 if is_kept else 1)
