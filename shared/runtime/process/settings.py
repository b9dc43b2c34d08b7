"""The settings of a process: the environment, read once, checked at start, logged once."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.limits import PATTERNS_IN_WORDS, TOKEN_PATTERN
from elasticflow.shared.runtime.process.nats_access import NatsAccess
from elasticflow.shared.runtime.process.variables import check_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every service reads these; the executor adds its own (services/executor/settings.py)."""

    nats_url: str  # NATS_URL, credentials included
    # EF_NATS_CREDS: key of this process, from `eflow keys`; EF_NATS_CA: certificates that sign the server's, for TLS;
    # EF_NATS_CERT and EF_NATS_KEY: certificate of this process, if the server asks for one
    nats_access: NatsAccess
    pool: str  # EF_POOL
    replicas: int  # EF_REPLICAS: copies of each stream: 1, 3 or 5, at most one for each server of the cluster
    data_dir: Path  # EF_DATA_DIR: logs, code, checkpoints
    log_format: str  # EF_LOG_FORMAT: auto, console or json
    log_level: str  # EF_LOG_LEVEL
    metrics_port: int  # EF_METRICS_PORT: /metrics and /healthz, 0 = a free one
    metrics_host: str  # EF_METRICS_HOST
    instance: str  # EF_INSTANCE: distinguishes replicas in logs and leases

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Settings":
        """Raises BadSettings, naming every variable that is wrong."""
        check_names(os.environ if environment is None else environment)
        read = Reader(os.environ if environment is None else environment)
        settings = cls(
            nats_url=read.text("NATS_URL", "nats://127.0.0.1:4222"),
            nats_access=NatsAccess.from_environment(os.environ if environment is None else environment),
            pool=read.token("EF_POOL", "default"),
            # JetStream accepts 2 and 4 too, but they tolerate no more lost servers than 1 and 3.
            replicas=int(read.choice("EF_REPLICAS", "1", ("1", "3", "5"))),
            data_dir=Path(read.text("EF_DATA_DIR", ".eflow")).absolute(),
            log_format=read.choice("EF_LOG_FORMAT", "auto", ("auto", "console", "json")),
            log_level=read.choice("EF_LOG_LEVEL", "info", ("debug", "info", "warning", "error")),
            metrics_port=read.integer("EF_METRICS_PORT", 0, low=0, high=65535),
            metrics_host=read.text("EF_METRICS_HOST", "127.0.0.1"),
            instance=read.token("EF_INSTANCE", _default_instance()),
        )
        for problem in settings.nats_access.problems():
            read.reject(problem)
        read.check()
        return settings


class Reader:
    """Reads variables one by one and remembers what was wrong with all of them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._problems: list[str] = []

    def text(self, name: str, default: str) -> str:
        return self._environment.get(name, "") or default

    def token(self, name: str, default: str, pattern: str = TOKEN_PATTERN) -> str:
        value = self.text(name, default)
        if not re.fullmatch(pattern, value):
            self.reject(f"{name}={value!r}: {PATTERNS_IN_WORDS[pattern]}")
        return value

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        value = self.text(name, default)
        if value not in choices:
            self.reject(f"{name}={value!r}: choose one of {', '.join(choices)}")
            return default
        return value

    def integer(self, name: str, default: int, *, low: int, high: int) -> int:
        return int(self.number(name, default, low=low, high=high, kind=int))

    def number(
        self, name: str, default: float, *, low: float, high: float, kind: type[int] | type[float] = float
    ) -> float:
        value = self.text(name, str(default))
        try:
            number = kind(value)
        except ValueError:
            number = None
        if number is None or not low <= number <= high:
            self.reject(f"{name}={value!r}: must be a number from {low:g} to {high:g}")
            return default
        return number

    def reject(self, problem: str) -> None:
        """Report a problem with the next `check`."""
        self._problems.append(problem)

    def check(self) -> None:
        """Raises BadSettings if anything was wrong."""
        if self._problems:
            raise BadSettings(problems=tuple(self._problems))


def _default_instance() -> str:
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:40]
    return f"{host}-{os.getpid()}"
