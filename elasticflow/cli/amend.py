"""`eflow amend`."""

import math
from typing import Annotated

import typer

from elasticflow.cli.command_options import DataDir, Json, NatsUrl, NumIterations, Pool, Tenant, When, run
from elasticflow.cli.submission_options import deadline_of
from elasticflow.cli.terminal_output import plain, print_json, say_line
from elasticflow.client.client import Client
from elasticflow.history.formatting import schedule_in_words
from elasticflow.sdk.times import moment_in_words
from elasticflow.shared.messages.events import AmendRejected, JobAmended


def amend(
    job_id: Annotated[str, typer.Argument(metavar="JOB")],
    deadline: When = "",
    iterations: NumIterations = None,
    tenant: Tenant = "",
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Renegotiate: another deadline or other iterations for an admitted job,
    running or not.

    Refused where that cannot be kept beside all other promises: then the old
    promise stays, and exit code is 1.

    \b
    Examples:
      eflow amend digits-3f9a1c --deadline 10m
      eflow amend digits-3f9a1c --iterations 5000 --deadline 2h
    """
    wanted = deadline_of(deadline)

    async def ask(client: Client) -> JobAmended | AmendRejected:
        return await client.amend(
            job_id, deadline=wanted.deadline, within=wanted.within, max_iterations=iterations
        )

    answer = run(ask, nats_url=nats_url, pool=pool, data_dir=data_dir, tenant=tenant)
    amended = isinstance(answer, JobAmended)
    if as_json:
        print_json({"amended": amended, **plain(answer)})
    elif isinstance(answer, JobAmended):
        _show_amended(answer)
    else:
        _show_refused(answer)
    raise typer.Exit(0 if amended else 1)


def _show_amended(answer: JobAmended) -> None:
    say_line(f"amended  {answer.job_id}: {answer.max_iterations} iterations", "green")
    if answer.deadline_s is not None:
        say_line(f"  deadline  {moment_in_words(answer.deadline_s, answer.at_s)}")
    if answer.minimum_satisfactory_share:
        say_line(f"  promised  {schedule_in_words(answer.minimum_satisfactory_share)}")


def _show_refused(answer: AmendRejected) -> None:
    say_line(f"not amended: {answer.job_id}: {answer.explanation}", "yellow")
    for offer in answer.offers:
        left_s = math.ceil(offer.deadline_s - answer.at_s)
        say_line(
            f"  take it  eflow amend {answer.job_id} --deadline {left_s}s --iterations {offer.max_iterations}"
        )
