"""Options of nearly all commands: which pool, as which tenant, and JSON; and the connection to that pool."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from elasticflow.cli.option_table import rows_of
from elasticflow.cli.terminal_output import note
from elasticflow.client.client import Client
from elasticflow.client.ledger import ExportedLedger
from elasticflow.client.pool_endpoint import Endpoint, find_endpoint
from elasticflow.shared.messages.events import (
    AmendRejected,
    CancelLoadRejected,
    CancelRejected,
    CheckpointRejected,
    GpuLimitsRejected,
)

T = TypeVar("T")

_WHERE = "Which pool"

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

Tenant = Annotated[
    str,
    typer.Option("--tenant", envvar="EF_TENANT", metavar="NAME", help="Tenant whose quota counts. Default: default."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """The options that name a pool."""

    nats_url: Annotated[
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
    ] = ""
    pool: Pool = ""
    data_dir: DataDir = None

    def endpoint(self) -> Endpoint:
        """Raises NoPoolHere."""
        return find_endpoint(nats_url=self.nats_url, pool=self.pool, data_dir=self.data_dir)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantOptions(PoolOptions):
    """The options that name a pool and one of its tenants."""

    tenant: Tenant = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralPoolsOptions(TenantOptions):
    """The options that name a pool, or several of which the best gets the job, and one of their tenants."""

    pools: Annotated[
        str,
        typer.Option(
            "--pools",
            metavar="POOL,POOL,...",
            rich_help_panel=_WHERE,
            show_default=False,
            help="Ask several pools, and take the best. A POOL is a NAME on that server, NAME=nats://host:port on "
            "another one, or the folder of a pool on this machine, with a slash.",
        ),
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerOptions(TenantOptions):
    """Which pool, and which of its tenants owns the job."""

    tenant: Annotated[
        str,
        typer.Option("--tenant", envvar="EF_TENANT", metavar="NAME", help="Tenant whose job it is. Default: default."),
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerOptions:
    """The options that name a ledger: that of a pool, or an exported one."""

    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            rich_help_panel=_WHERE,
            show_default=False,
            help="Read a ledger that `eflow events export` wrote instead of a pool.",
        ),
    ] = None
    where: PoolOptions = PoolOptions()


def remember_json(context: typer.Context, as_json: bool) -> bool:
    """Keep the option for the handler that prints a failure of the command."""
    context.meta[AS_JSON] = as_json
    return as_json


AS_JSON = "as_json"  # key in a context's meta
Json = Annotated[bool, typer.Option("--json", callback=remember_json, help="Print one JSON value instead of a table.")]


def where_words(context: typer.Context, where: TenantOptions) -> tuple[str, ...]:
    """The options that name the pool, as the user typed them, and its tenant. A suggested command repeats them."""
    sources = {row.name: context.get_parameter_source(row.name) for row in rows_of(where)}
    typed = {"tenant", *(name for name, source in sources.items() if source and source.name == "COMMANDLINE")}
    return tuple(word for row in rows_of(where) if row.name in typed for word in row.words(where))


def run(call: Callable[[Client], Awaitable[T]], where: PoolOptions) -> T:
    """Connect to the pool that the options name, make the call, and disconnect."""
    return run_at(where.endpoint(), call, tenant=where.tenant if isinstance(where, TenantOptions) else "")


def read(call: Callable[[Client | ExportedLedger], Awaitable[T]], ledger: LedgerOptions) -> T:
    """Make the call on an exported ledger, or without a file on the pool."""
    if (file := ledger.file) is None:
        return run(call, ledger.where)

    async def on_file() -> T:
        return await call(ExportedLedger(file))

    return asyncio.run(on_file())


def run_at(endpoint: Endpoint, call: Callable[[Client], Awaitable[T]], *, tenant: str = "") -> T:
    async def connected() -> T:
        async with Client.connect(endpoint, tenant=tenant) as client:
            result = await call(client)
            for line in () if client.view is None else client.view.notes(client.now_s()):
                note(f"eflow: {line}")
            return result

    return asyncio.run(connected())


# --- owner advice -------------------------------------------------------------------------------------
# Whose job or padding load a command meant, if it is of another tenant than the command.

_REJECTIONS = (AmendRejected, CancelRejected, CancelLoadRejected, CheckpointRejected, GpuLimitsRejected)
Answer = TypeVar("Answer")


async def naming_owner(client: Client, name: str, answer: Answer) -> Answer:
    """The answer to a command about this job or load, with the tenant that it belongs to, if that is why it is unknown.

    Admission tells a tenant nothing of the others. A client that reads the whole ledger may know it all the same.
    """
    if not isinstance(answer, _REJECTIONS):
        return answer
    unknown = answer.explanation.partition(";")[0]
    if not unknown.endswith((" has no such job", " has no such load")):
        return answer
    state = await client.state()
    meant = state.loads.get(name) if unknown.endswith("load") else state.job(name)
    if meant is None or meant.tenant == client.tenant:
        return answer
    return replace(answer, explanation=f"{unknown}; {owner_in_words(unknown.split()[-1], meant.tenant)}")


def owner_in_words(kind: str, tenant: str) -> str:
    """kind: job or load."""
    return f"it is a {kind} of tenant {tenant}: add --tenant {tenant}"
