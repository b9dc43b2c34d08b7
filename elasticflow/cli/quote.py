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
from elasticflow.cli.option_values import duration_of
from elasticflow.cli.terminal_output import plain, print_json, say_line
from elasticflow.client.client import Client
from elasticflow.sdk.submission import load, quotable, with_code
from elasticflow.shared.messages.events import DeadlineQuoted, QuoteRejected, QuoteReserved


def quote(
    context: typer.Context,
    target: Target,
    arguments: Arguments = None,
    torchrun: Torchrun = False,
    batch_per_worker: BatchPerWorker = None,
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
    measured. It runs none of the job's code, and so needs no --secret.

    \b
    Examples:
      eflow quote train.py
      eflow quote train.py:Digits --batch 256 --iterations 3000 --json
      eflow quote train.py --reserve 60s
    """
    options = SubmissionOptions(
        target=target,
        arguments=tuple(arguments or ()),
        torchrun=torchrun,
        batch_per_worker=batch_per_worker,
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
    )
    job, code = load(options.entry, options.arguments, workdir)
    ready = with_code(quotable(options.apply(job)), code)

    reserved_s = duration_of(reserve, "--reserve")

    async def ask(client: Client) -> DeadlineQuoted | QuoteReserved | QuoteRejected:
        if reserved_s is not None:
            return await client.reserve(ready.spec, duration=reserved_s)
        return await client.quote(ready.spec)

    quoted = run(ask, nats_url=nats_url, pool=pool, data_dir=data_dir, tenant=tenant)
    if not isinstance(quoted, DeadlineQuoted):
        reserved = isinstance(quoted, QuoteReserved)
        print_json({"held": reserved, **plain(quoted)}) if as_json else show_reserved(quoted, options)
        raise typer.Exit(0 if reserved else 1)
    if as_json:
        print_json(quoted)
    elif quoted.earliest_deadline_s is None:
        say_line(f"no quote: {quoted.explanation}", "yellow")
    else:
        show_quote(quoted, quoted.earliest_deadline_s, options)
    raise typer.Exit(0 if quoted.earliest_deadline_s is not None else 1)
