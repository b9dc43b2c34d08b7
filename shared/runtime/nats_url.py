"""URLs of NATS: checked, masked where people see them, taken apart."""

from urllib.parse import urlsplit

from shared.errors import BadSettings

_SCHEMES = ("nats", "tls", "ws", "wss")


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
            good = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
        except ValueError:  # of a port that is none
            good = False
        if not good:
            raise BadSettings(("NATS_URL must be like nats://host:4222, or nats://TOKEN@host:4222",))


def login(url: str) -> tuple[str | None, str | None, str | None]:
    """User, password, token: for servers that we learn of from others too, whose URLs carry none."""
    parts = urlsplit(url)
    if parts.password is not None:
        return parts.username, parts.password, None
    return None, None, parts.username
