"""The secrets of generations, which their workers prove to each other.

Each executor derives them from a secret of the pool, so they are in no message of the ledger.
"""

import hmac
import re
from dataclasses import dataclass, field
from pathlib import Path

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.runtime.process.private_file import private_bytes
from elasticflow.shared.runtime.process.workers_secret import VARIABLE

_LEAST_BYTES = 16
_RANDOM = re.compile(rb"[0-9a-f]{64}")  # as `eflow keys` makes it: its digest does not reveal it
_DIGEST_LENGTH = 16


@dataclass(frozen=True, slots=True)
class GenerationSecrets:
    """pool_secret: known to executors only; empty: workers prove nothing."""

    pool_secret: bytes = field(default=b"", repr=False)

    @classmethod
    def read(cls, file: Path | None) -> "GenerationSecrets":
        """None: no file. Raises BadSettings."""
        if file is None:
            return cls()
        secret = private_bytes(VARIABLE, file).strip()
        if len(secret) < _LEAST_BYTES:
            advice = f"`(umask 077; openssl rand -hex 32 > {file})` makes a secret"
            raise BadSettings((f"{VARIABLE}={file}: shorter than {_LEAST_BYTES} bytes; {advice}",))
        return cls(secret)

    def digest(self, pool: str) -> str:
        """For `NodeJoined`: "none" without a secret, "" of one that may be guessed."""
        if not self.pool_secret:
            return "none"
        if not _RANDOM.fullmatch(self.pool_secret):
            return ""
        return hmac.digest(self.pool_secret, f"digest/{pool}".encode(), "sha256").hex()[:_DIGEST_LENGTH]

    def of(self, job_id: str, generation: int) -> str:
        """64 hexadecimal digits; "" without a secret of the pool."""
        message = f"rendezvous/{job_id}/{generation}".encode()
        return hmac.digest(self.pool_secret, message, "sha256").hex() if self.pool_secret else ""
