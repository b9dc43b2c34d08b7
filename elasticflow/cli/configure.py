"""`eflow configure`."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from elasticflow.cli.command_options import DataDir, Json, NatsUrl, Pool
from elasticflow.cli.terminal_output import print_json, say_line
from elasticflow.client.configure_pool import configure as configure_pool
from elasticflow.client.configure_pool import read_config
from elasticflow.client.pool_endpoint import find_endpoint
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.settings import Settings


def configure(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", show_default=False, help="PoolConfig as TOML or JSON."),
    ] = None,
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Say what the policies of a pool assume, from here on. A pool that has no
    configuration gets the defaults where no file is given; another one stays
    as it is. With --json: what is assumed then.

    \b
    Examples:
      eflow configure pool.toml
      eflow configure --nats-url nats://token@host:4222 --pool default
      eflow configure --json | jq .config
    """
    wanted = read_config(file) if file is not None else None
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    replicas = Settings.from_environment().replicas
    config = asyncio.run(
        configure_pool(endpoint.nats_url, endpoint.pool, wanted, SystemClock(), stream_replicas=replicas)
    )
    if as_json:
        print_json({"pool": endpoint.pool, "config": config})
    else:
        say_line(f"pool {endpoint.pool} is configured")
