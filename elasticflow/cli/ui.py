"""`eflow ui`: the pool, or an exported ledger, in a browser."""

import asyncio
import contextlib
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elasticflow.cli.command_options import LedgerOptions, Tenant
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.report import Price, prices_of
from elasticflow.cli.terminal_output import note, say_line
from elasticflow.client.client import Client
from elasticflow.client.ledger import read_ledger
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.shared.extras import require_extra
from elasticflow.shared.runtime.process.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from elasticflow.history.usage_report import Prices
    from elasticflow.web.read_routes import Page

# --- What it means that the page listens at an address which other machines reach ----------------------

CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")  # of Docker, of Podman


def exposure_warning(host: str, port: int) -> str:
    """ "" on the loopback, and in a container, where its operator chooses the ports that are published."""
    if _is_loopback(host) or any(Path(file).exists() for file in CONTAINER_FILES):
        return ""
    return (
        f"warning: other machines reach {host}:{port}, over plain HTTP. Only the token of a link keeps them out, and "
        "each machine on the way can read the link, the cookie and the page. Leave --host out; from another machine "
        f"forward the port: ssh -L {port}:127.0.0.1:{port} THIS-MACHINE"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# --- ui ------------------------------------------------------------------------------------------------

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """What the page permits and shows, and where it listens."""

    operator: Annotated[
        bool,
        typer.Option("--operator", help="Let the page cancel, amend, checkpoint and reserve, as your tenant."),
    ] = False
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="Default: a free one.")] = 0
    host: Annotated[
        str,
        typer.Option("--host", help="Address to listen at; in a container 0.0.0.0, published on loopback only."),
    ] = _LOOPBACK
    price: Price = ""


@takes_tables
def ui(
    old_file: Annotated[Path | None, typer.Argument(metavar="[FILE]", hidden=True)] = None,
    page: PageOptions = PageOptions(),
    tenant: Tenant = "",
    ledger: LedgerOptions = LedgerOptions(),
) -> None:
    """Show the pool in a browser: promises, jobs, nodes, quotes, and a replay of
    every decision. Ctrl-C ends the command.

    It prints a link that opens one browser on this machine. The page reads only,
    unless --operator is given. It needs the extra `web`.

    \b
    Examples:
      eflow ui
      eflow ui --operator --port 8420
      eflow ui --price V100=2.48,P100=1.46   # quotes and tenants have costs
      eflow ui --file run.ledger   # an export, without NATS
    """
    require_extra("web", "eflow ui")
    prices = prices_of(page.price) if page.price else None
    if (file := ledger.file or old_file) is not None:
        asyncio.run(serve_file(file, page, prices))
        return
    asyncio.run(_serve_pool(ledger.where.endpoint(), tenant, page, prices))


async def _serve_pool(endpoint: Endpoint, tenant: str, chosen: PageOptions, prices: "Prices | None") -> None:
    from elasticflow.web.read_routes import LIVE, Page
    from elasticflow.web.sources import LiveSource

    clock = SystemClock()
    async with Client.connect(endpoint, tenant=tenant, clock=clock) as client:
        _ = client.ledger  # the page shows all tenants
        source = LiveSource(client, clock)
        page = Page(
            sources={LIVE: source},
            client=client,
            data_dir=endpoint.data_dir,
            operator=chosen.operator,
            prices=prices,
        )
        await _serve(page, source.follow, chosen, source.title)


async def serve_file(file: Path, chosen: PageOptions, prices: "Prices | None") -> None:
    from elasticflow.web.read_routes import LIVE, Page
    from elasticflow.web.sources import RecordedSource

    source = RecordedSource(file.name, read_ledger(file))
    await _serve(Page(sources={LIVE: source}, prices=prices), source.fold_all, chosen, source.title)


async def _serve(page: "Page", beside: "Callable[[], Awaitable[None]]", chosen: PageOptions, title: str) -> None:
    from elasticflow.web.server import Sessions, application, listening_socket, serve

    with contextlib.closing(listening_socket(chosen.host, chosen.port)) as listening:
        sessions = Sessions(listening.getsockname()[1])
        if warning := exposure_warning(chosen.host, sessions.port):
            note(warning)
        page.csrf_token = sessions.csrf_token
        app = application(page, sessions, lambda: note(f"opened; another browser: {sessions.new_link()}"))
        say_line(f"{title}: {sessions.new_link()}")
        note("the link opens one browser; Ctrl-C ends the server")
        await serve(app, listening, beside)
