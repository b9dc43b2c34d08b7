"""`eflow quote`."""

from typing import Annotated

import typer

from elasticflow.cli.command_options import (
    DataDir,
    Json,
    NatsUrl,
    NumIterations,
    Pool,
    SubmissionOptions,
    Tenant,
    When,
    run,
    where_words,
)
from elasticflow.cli.decision_output import (
    show_quote,
    show_reserved,
)
from elasticflow.cli.job_options import (
    Arguments,
    Batch,
    BatchPerWorker,
    Data,
    Environment,
    GpuMemory,
    Gpus,
    GpuType,
    Requirement,
    Settings,
    Target,
    Torchrun,
    Workdir,
)
from elasticflow.cli.option_values import duration_of, end_of
from elasticflow.cli.terminal_output import plain, print_json, say_line
from elasticflow.client.client import Client
from elasticflow.sdk.submission import load, quotable, with_code
from elasticflow.shared.messages.events import DeadlineQuoted, QuoteRejected, QuoteReserved
from elasticflow.shared.runtime.process.clock import SystemClock


def quote(
    context: typer.Context,
    target: Target,
    arguments: Arguments = None,
    torchrun: Torchrun = False,
    batch_per_worker: BatchPerWorker = None,
    deadline: When = "",
    batch: Batch = None,
    iterations: NumIterations = None,
    setting: Settings = None,
    workdir: Workdir = None,
    env: Environment = None,
    requirement: Requirement = None,
    data: Data = None,
    gpus: Gpus = "",
    gpu_type: GpuType = "",
    gpu_memory: GpuMemory = "",
    reserve: Annotated[
        str,
        typer.Option("--reserve", metavar="TIME", help="Reserve the quote for 60s, 5m, ...; at most 10m."),
    ] = "",
    tenant: Tenant = "",
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Quote the earliest deadline that admission would promise a job now.

    The command submits no job, and reserves GPUs only with --reserve. Exit code
    1 if no deadline can be quoted, for example because the job's speed was never
    measured, or if it is later than --deadline. It runs none of the job's code,
    and so needs no --secret.

    \b
    Examples:
      eflow quote train.py
      eflow quote train.py --deadline 10m          (would that be promised?)
      eflow quote train.py:Digits --batch 256 --iterations 3000 --json
      eflow quote train.py --reserve 60s
    """
    now_s = SystemClock().now_s()
    options = SubmissionOptions(
        target=target,
        arguments=tuple(arguments or ()),
        torchrun=torchrun,
        batch_per_worker=batch_per_worker,
        deadline=deadline,
        batch=batch,
        iterations=iterations,
        settings=tuple(setting or ()),
        workdir=workdir,
        environment=tuple(env or ()),
        requirement=requirement,
        data=tuple(data or ()),
        gpus=gpus,
        gpu_type=gpu_type,
        gpu_memory=gpu_memory,
        tenant=tenant,
        where=where_words(context),
    ).checked(now_s)
    wanted_s = end_of(deadline, "--deadline", now_s) if deadline else None
    reserved_s = duration_of(reserve, "--reserve")
    job, code = load(options.entry, options.arguments, workdir)
    ready = with_code(quotable(options.apply(job)), code)

    async def ask(client: Client) -> DeadlineQuoted | QuoteReserved | QuoteRejected:
        if reserved_s is not None:
            return await client.reserve(ready.spec, duration=reserved_s)
        return await client.quote(ready.spec)

    quoted = run(ask, nats_url=nats_url, pool=pool, data_dir=data_dir, tenant=tenant)
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
