"""How a process proves to NATS who it is, and how it knows that the server is the right one."""

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.runtime.process.files import file_named, private_bytes

_SEED_START = "SU"  # of an nkey of a user


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsAccess:
    """Files; None: not used. A token in NATS_URL needs none of them.

    ca: certificates that sign the server's; with it, the client sends nothing without TLS.
    certificate, key: of this client, if the server asks for one. credentials: an nkey's seed, made by `eflow keys`.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    credentials: Path | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "NatsAccess":
        """EF_NATS_CA, EF_NATS_CERT, EF_NATS_KEY, EF_NATS_CREDS."""
        return cls(
            ca=file_named(environment, "EF_NATS_CA"),
            certificate=file_named(environment, "EF_NATS_CERT"),
            key=file_named(environment, "EF_NATS_KEY"),
            credentials=file_named(environment, "EF_NATS_CREDS"),
        )

    def problems(self) -> tuple[str, ...]:
        """One line for each file that cannot be used, with what to do."""
        found: list[str] = []
        for check in (self.seed, self.tls):
            try:
                check()
            except BadSettings as error:
                found += error.problems
        return tuple(found)

    def seed(self) -> str | None:
        """The secret key; None without one. Raises BadSettings."""
        if self.credentials is None:
            return None
        try:
            seed = private_bytes("EF_NATS_CREDS", self.credentials).decode().strip()
        except UnicodeDecodeError as error:
            raise BadSettings((f"EF_NATS_CREDS={self.credentials}: cannot be read ({error})",)) from None
        if not seed.startswith(_SEED_START) or len(seed.split()) != 1:
            raise BadSettings((f"EF_NATS_CREDS={self.credentials}: holds no seed; `eflow keys add` makes one",))
        return seed

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context; None without a `ca`. Raises BadSettings."""
        if self.ca is None:
            if self.certificate is not None or self.key is not None:
                raise BadSettings(("EF_NATS_CERT, EF_NATS_KEY: set EF_NATS_CA too",))
            return None
        if (self.certificate is None) != (self.key is None):
            raise BadSettings(("EF_NATS_CERT, EF_NATS_KEY: set both of them, or none",))
        name, file = "EF_NATS_CA", self.ca
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                name, file = "EF_NATS_CERT", self.certificate
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # also ssl.SSLError
            raise BadSettings((f"{name}={file}: cannot be used ({error})",)) from None
        return context


WITH_TOKEN = NatsAccess()


# --- This machine's address, as the other machines of a pool reach it ----------------------------------

_LOOPBACK = ("localhost", "127.0.0.1", "::1", "")


def reachable_host(nats_url: str) -> str:
    """This machine's address on the route to NATS; loopback if NATS runs here, because then all nodes do."""
    first = nats_url.split(",")[0].strip()
    parts = urlsplit(first if "://" in first else f"nats://{first}")
    nats_host = parts.hostname or ""
    if nats_host in _LOOPBACK:
        return "127.0.0.1"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((nats_host, parts.port or 4222))  # sends nothing, only selects the route
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
