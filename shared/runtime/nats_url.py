"""URLs of NATS: checked, masked where people see them, taken apart."""

from importlib.util import find_spec
from urllib.parse import urlsplit

from shared.errors import BadSettings

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
            raise BadSettings(
                ("NATS_URL names websockets, for which nats-py needs aiohttp: pip install aiohttp",)
            )


def login(url: str) -> tuple[str | None, str | None, str | None]:
    """User, password, token: for servers that we learn of from others too, whose URLs carry none."""
    parts = urlsplit(url)
    if parts.password is not None:
        return parts.username, parts.password, None
    return None, None, parts.username
