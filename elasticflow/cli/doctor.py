"""`eflow doctor`."""

import asyncio
import os
from dataclasses import asdict
from typing import Annotated

import typer

from elasticflow.cli.command_options import Json, PoolOptions
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.terminal_output import print_json, say_line
from elasticflow.client.doctor import Finding, examine
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.settings import Reader


@takes_tables
def doctor(
    nats_monitor: Annotated[
        list[str] | None,
        typer.Option("--nats-monitor", metavar="URL", help="HTTP page of a NATS server: http://host:8222. Repeatable."),
    ] = None,
    where: PoolOptions = PoolOptions(),
    as_json: Json = False,
) -> None:
    """Find misconfigurations of a pool and of this machine, and what to do about
    each. Run it where a service or an executor runs, with its environment.

    Exit code 0 if all is well, 1 if something is wrong.

    \b
    Examples:
      eflow doctor
      EF_REPLICAS=3 eflow doctor --nats-url nats://token@host:4222
      eflow doctor --nats-monitor http://nats-1:8222 \\
        --nats-monitor http://nats-2:8222
      eflow doctor --json | jq '.[] | select(.problem != "")'
    """
    endpoint = where.endpoint()
    read = Reader(os.environ)
    replicas = int(read.choice("EF_REPLICAS", "1", ("1", "3", "5")))
    read.check()
    examining = examine(
        endpoint,
        replicas=replicas,
        clock=SystemClock(),
        environment=os.environ,
        monitor_urls=nats_monitor or (),
    )
    findings = asyncio.run(examining)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            say_line(_line(finding))
    if any(finding.problem for finding in findings):
        raise typer.Exit(1)


def _line(finding: Finding) -> str:
    state = "wrong" if finding.problem else "unknown" if finding.unknown else "ok"
    return f"{state:<8} {finding.check:<15} {finding.problem or finding.unknown}".rstrip()
