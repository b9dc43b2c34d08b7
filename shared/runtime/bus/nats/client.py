"""URLs of NATS: checked, masked where people see them, taken apart.

The first connection of a nats-py client: how long to try, and which failures no retry can repair.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from nats.aio.client import Client

from elasticflow.shared.errors import BadCredentials, BadSettings, Unavailable
from elasticflow.shared.runtime.process.logs import log
from elasticflow.shared.runtime.process.nats_access import NatsAccess

_WEBSOCKETS = ("ws", "wss")
_SCHEMES = ("nats", "tls", *_WEBSOCKETS)


def masked(url: str) -> str:
    """The URL without user, password and token."""
    return ",".join(
        f"{parts.scheme}://{'***@' if parts.username else ''}{parts.netloc.rpartition('@')[2]}"
        for parts in map(urlsplit, url.split(","))
    )


def check_url(url: str) -> None:
    """Raises BadSettings if this names no NATS server, without repeating it: it may hold a secret."""
    for part in url.split(","):
        try:
            parts = urlsplit(part)
            scheme = parts.scheme if parts.hostname and parts.port != 0 else ""
        except ValueError:  # of a port that is none
            scheme = ""
        if scheme not in _SCHEMES:
            raise BadSettings(("NATS_URL must be like nats://host:4222, or nats://TOKEN@host:4222",))
        if scheme in _WEBSOCKETS and find_spec("aiohttp") is None:
            raise BadSettings(("NATS_URL names websockets, for which nats-py needs aiohttp: pip install aiohttp",))


def login(url: str) -> tuple[str | None, str | None, str | None]:
    """User, password, token: for servers that we learn of from others too, whose URLs carry none."""
    parts = urlsplit(url)
    if parts.password is not None:
        return parts.username, parts.password, None
    return None, None, parts.username


_RECONNECT_WAIT_S = 0.2
_CONNECT_TIMEOUT_S = 2
_PING_INTERVAL_S = 2  # also finds a connection that broke while it was being made again: nats-py overlooks it
_DRAIN_TIMEOUT_S = 5

Told = Callable[[], Awaitable[None]]
Refused = Callable[[str], None]  # with what the server does not permit, in its words


class ConnectionListener(NamedTuple):
    """Is told what happens to a connection."""

    refused: Refused
    disconnected: Told
    reconnected: Told
    closed: Told


def _is_no_report_of_nats_py(record: logging.LogRecord) -> bool:
    """nats-py keeps a TLS connection half open at its end, of which asyncio warns; it has no effect."""
    return "eof_received" not in record.getMessage()


async def connect_client(
    client: Client, url: str, *, name: str, wait_s: float, access: NatsAccess, listener: ConnectionListener
) -> None:
    """Connect within wait_s; from then on nats-py reconnects without end, and reports it.

    Raises BadCredentials and BadSettings (at once), or Unavailable.
    """
    tls, seed = access.tls(), access.seed()
    logging.getLogger("asyncio").addFilter(_is_no_report_of_nats_py)
    servers = url.split(",")
    user, password, token = login(servers[0])
    attempt = _Trying(url, num_servers=len(servers), wait_s=wait_s, on_refused=listener.refused)
    connecting = asyncio.ensure_future(
        client.connect(
            servers,
            name=name,
            tls=tls,
            tls_handshake_first=tls is not None,  # else nats-py sends a token to a server that asks for no TLS
            nkeys_seed_str=seed,
            token=token,
            user=user,
            password=password,
            error_cb=attempt.on_error,
            disconnected_cb=listener.disconnected,
            reconnected_cb=listener.reconnected,
            closed_cb=listener.closed,
            max_reconnect_attempts=-1,
            reconnect_time_wait=cast(int, _RECONNECT_WAIT_S),
            connect_timeout=_CONNECT_TIMEOUT_S,
            ping_interval=_PING_INTERVAL_S,
            drain_timeout=_DRAIN_TIMEOUT_S,
        )
    )
    try:
        await asyncio.wait({connecting, attempt.failed}, return_when=asyncio.FIRST_COMPLETED)
        if attempt.failed.done():
            attempt.failed.result()
        connecting.result()
    except BaseException:
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        raise
    finally:
        attempt.failed.cancel()


class _Trying:
    """nats-py tries without end; this decides when to stop. Later errors are only logged."""

    def __init__(self, url: str, *, num_servers: int, wait_s: float, on_refused: Refused) -> None:
        loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = loop.create_future()
        self._url = masked(url)
        self._num_servers = num_servers
        self._give_up_at = loop.time() + wait_s
        self._num_failures = 0
        self._on_refused = on_refused

    async def on_error(self, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        log.debug("nats_error", url=self._url, error=reason)
        if "permissions violation" in reason.lower():
            self._on_refused(reason)
            return
        self._num_failures += 1
        if self.failed.done():
            return
        if "authorization" in str(error).lower():
            self.failed.set_exception(BadCredentials(self._url))
        elif isinstance(error, ssl.SSLCertVerificationError):
            problem = f"EF_NATS_CA: does not sign the certificate of {self._url} ({error.verify_message})"
            self.failed.set_exception(BadSettings((problem,)))
        elif self._num_failures >= self._num_servers and asyncio.get_running_loop().time() >= self._give_up_at:
            self.failed.set_exception(Unavailable(self._url, reason))
