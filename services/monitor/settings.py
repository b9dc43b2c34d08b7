"""Settings of the monitor beside those of every service."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from elasticflow.shared.runtime.process.settings import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSettings:
    """The monitor also reads these."""

    webhook_url: str  # EF_WEBHOOK_URL: receives a POST when a job ends, is at risk, or its promise is broken; a secret

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "MonitorSettings":
        """Raises BadSettings. The message does not contain the URL: it may hold a secret."""
        read = Reader(os.environ if environment is None else environment)
        url = read.text("EF_WEBHOOK_URL", "")
        if url and not _is_usable(url):
            read.reject("EF_WEBHOOK_URL: must be http://host[:port]/path or https://..., without user or password")
        read.check()
        return cls(webhook_url=url)


def _is_usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and " " not in url
    return plain and has_port and parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
