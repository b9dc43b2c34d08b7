"""`eflow drain`."""

import asyncio
from typing import Annotated

import typer

from elasticflow.cli import completion
from elasticflow.cli.command_options import DataDir, Json, NatsUrl, Pool
from elasticflow.cli.option_values import end_of
from elasticflow.cli.terminal_output import plain, print_json, say_line
from elasticflow.client.drain_node import NOW, announce_node_end
from elasticflow.client.pool_endpoint import find_endpoint
from elasticflow.sdk.times import moment_in_words
from elasticflow.shared.runtime.process.clock import SystemClock

NEVER = "never"


def drain(
    node_id: Annotated[str, typer.Argument(metavar="NODE", autocompletion=completion.nodes)],
    at: Annotated[
        str,
        typer.Option(
            "--at",
            metavar="TIME",
            help="Its end: a duration (2m), a time (2026-05-01T18:00) or never. Default: at once.",
        ),
    ] = "",
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Announce when a node will end, or move its end.

    No promise rests on the node beyond its end. Shortly before (leave_s of the
    pool, 30 s), its jobs move to other GPUs or shrink, and the node leaves.
    Promises that no longer hold are reported, as after the loss of a node.
    With `never` the node stays.

    \b
    Examples:
      eflow drain node-7
      eflow drain spot-3 --at 2m
      eflow drain node-7 --at 2026-05-01T18:00
      eflow drain node-7 --at never
    """
    clock = SystemClock()
    until_s = NOW if not at else None if at == NEVER else end_of(at, "--at", clock.now_s())
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    announced = asyncio.run(announce_node_end(endpoint.nats_url, endpoint.pool, node_id, until_s, clock))
    if as_json:
        print_json(plain(announced))
    elif announced.until_s is None:
        say_line(f"{node_id} stays: no end is known")
    else:
        say_line(f"{node_id} ends at {moment_in_words(announced.until_s, announced.at_s)}")
