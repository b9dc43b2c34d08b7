"""Options that several commands share, and the connection to the pool that they name."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import Endpoint, find_endpoint

T = TypeVar("T")

_WHERE = "Which pool"

NatsUrl = Annotated[
    str,
    typer.Option(
        "--nats-url",
        envvar="NATS_URL",
        show_envvar=True,
        show_default=False,
        metavar="URL",
        rich_help_panel=_WHERE,
        help="NATS server, nats://TOKEN@host:port. Default: the pool that `eflow up` runs here.",
    ),
]
Pool = Annotated[
    str,
    typer.Option(
        "--pool",
        envvar="EF_POOL",
        metavar="NAME",
        rich_help_panel=_WHERE,
        show_default=False,
        help="Name of the pool on that server.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="EF_DATA_DIR",
        metavar="DIR",
        rich_help_panel=_WHERE,
        show_default=False,
        help="Folder of a pool on this machine. Default: the nearest .eflow, here or above.",
    ),
]
When = Annotated[
    str,
    typer.Option(
        "--deadline", metavar="WHEN", help="90s, 15m, 2h30m, 1d from now, or a time: 2026-05-01T18:00."
    ),
]
NumIterations = Annotated[
    int | None, typer.Option("--iterations", metavar="N", help="Total number of iterations.")
]
Tenant = Annotated[
    str,
    typer.Option(
        "--tenant", envvar="EF_TENANT", metavar="NAME", help="Tenant whose quota counts. Default: default."
    ),
]


def _remember(context: typer.Context, as_json: bool) -> bool:
    """Keep the option for the handler that prints a failure of the command."""
    context.meta[AS_JSON] = as_json
    return as_json


AS_JSON = "as_json"  # key in a context's meta
Json = Annotated[
    bool, typer.Option("--json", callback=_remember, help="Print one JSON value instead of a table.")
]


def where_words(context: typer.Context) -> tuple[str, ...]:
    """The options that name the pool, as the user typed them. A suggested command repeats them."""
    typed = {"--nats-url": "nats_url", "--pool": "pool", "--data-dir": "data_dir"}
    return tuple(
        word
        for option, parameter in typed.items()
        if (source := context.get_parameter_source(parameter)) is not None and source.name == "COMMANDLINE"
        for word in (option, str(context.params[parameter]))
    )


def run(
    call: Callable[[Client], Awaitable[T]],
    *,
    nats_url: str,
    pool: str,
    data_dir: Path | None,
    tenant: str = "",
) -> T:
    """Connect to the pool that the options name, make the call, and disconnect."""
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)
    return run_at(endpoint, call, tenant=tenant)


def run_at(endpoint: Endpoint, call: Callable[[Client], Awaitable[T]], *, tenant: str = "") -> T:
    async def connected() -> T:
        async with Client.connect(endpoint, tenant=tenant) as client:
            return await call(client)

    return asyncio.run(connected())
