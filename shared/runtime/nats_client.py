"""The first connection of a nats-py client: how long to try, and which failures no other try can mend."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import structlog
from nats.aio.client import Client

from shared.errors import BadCredentials, Unavailable
from shared.runtime.nats_url import login, masked

_RECONNECT_WAIT_S = 0.2
_CONNECT_TIMEOUT_S = 2
_PING_INTERVAL_S = 2  # also finds a connection that broke while it was being made again: nats-py overlooks it
_DRAIN_TIMEOUT_S = 5

Told = Callable[[], Awaitable[None]]

log = structlog.get_logger()


async def connect_client(
    client: Client,
    url: str,
    *,
    name: str,
    wait_s: float,
    tls: ssl.SSLContext | None,
    credentials_file: Path | None,
    disconnected_cb: Told,
    reconnected_cb: Told,
    closed_cb: Told,
) -> None:
    """Connect, trying for wait_s; from then on nats-py reconnects for ever, and tells of it.

    Raises BadCredentials (at once), or Unavailable.
    """
    servers = url.split(",")
    user, password, token = login(servers[0])
    trying = _Trying(url, num_servers=len(servers), wait_s=wait_s)
    connecting = asyncio.ensure_future(
        client.connect(
            servers,
            name=name,
            tls=tls,
            user_credentials=credentials_file,
            token=token,
            user=user,
            password=password,
            error_cb=trying.on_error,
            disconnected_cb=disconnected_cb,
            reconnected_cb=reconnected_cb,
            closed_cb=closed_cb,
            max_reconnect_attempts=-1,
            reconnect_time_wait=cast(int, _RECONNECT_WAIT_S),
            connect_timeout=_CONNECT_TIMEOUT_S,
            ping_interval=_PING_INTERVAL_S,
            drain_timeout=_DRAIN_TIMEOUT_S,
        )
    )
    try:
        await asyncio.wait({connecting, trying.failed}, return_when=asyncio.FIRST_COMPLETED)
        if trying.failed.done():
            trying.failed.result()
        connecting.result()
    except BaseException:
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        raise
    finally:
        trying.failed.cancel()


class _Trying:
    """nats-py tries for ever; this says when to stop. It hears of errors later, too, and only logs them."""

    def __init__(self, url: str, *, num_servers: int, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = loop.create_future()
        self._url = masked(url)
        self._num_servers = num_servers
        self._give_up_at = loop.time() + wait_s
        self._num_failures = 0

    async def on_error(self, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        log.debug("nats_error", url=self._url, error=reason)
        self._num_failures += 1
        if self.failed.done():
            return
        if "authorization" in str(error).lower():
            self.failed.set_exception(BadCredentials(self._url))
        elif (
            self._num_failures >= self._num_servers and asyncio.get_running_loop().time() >= self._give_up_at
        ):
            self.failed.set_exception(Unavailable(self._url, reason))
