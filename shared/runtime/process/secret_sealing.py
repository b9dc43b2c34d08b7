"""Secrets of jobs: sealed by clients for the executors of a pool, which alone hold the private key (docs/adr/0069).

A sealed secret names its tenant within: it is worthless in a job of another tenant, although all can read the ledger.
"""

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from pathlib import Path

from nacl.exceptions import CryptoError
from nacl.public import PrivateKey, PublicKey, SealedBox

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.messages.job_environment import SealedSecret
from elasticflow.shared.runtime.process.files import file_named, readable_by_others


class SecretsUnusable(Exception):
    """The secrets of this job cannot be opened here: the job fails with this message."""


def seal(public_key: str, tenant: str, name: str, value: str) -> SealedSecret:
    """public_key: of the pool, as `public_key_of` returns it."""
    content = json.dumps({"tenant": tenant, "name": name, "value": value}).encode()
    sealed = SealedBox(PublicKey(b64decode(public_key))).encrypt(content)
    return SealedSecret(name=name, sealed=b64encode(sealed).decode())


def kept_key(file: Path) -> str:
    """The public key of the private one in this file, which is made if it is absent, readable by its owner only."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    else:
        with os.fdopen(descriptor, "w") as opened:
            opened.write(b64encode(bytes(PrivateKey.generate())).decode() + "\n")
    return SecretKeys.read(file).public_key


class SecretKeys:
    """The private keys of an executor, the newest first; none opens no secret."""

    def __init__(self, keys: Iterable[PrivateKey] = ()) -> None:
        self._keys = tuple(keys)

    @classmethod
    def read(cls, file: Path | None) -> "SecretKeys":
        """One key in each line. Raises BadSettings."""
        if file is None:
            return cls()
        problem = readable_by_others(file)
        try:
            keys = [PrivateKey(b64decode(line, validate=True)) for line in file.read_text().split()]
        except (OSError, ValueError, TypeError, CryptoError):
            keys, problem = [], problem or "cannot be read as keys; `eflow keys secrets` makes one"
        if problem or not keys:
            raise BadSettings((f"EF_SECRETS_KEY={file}: {problem or 'holds no key; `eflow keys secrets` makes one'}",))
        return cls(keys)

    @property
    def public_key(self) -> str:
        """The value for `secrets_key` of the pool's configuration."""
        return b64encode(bytes(self._keys[0].public_key)).decode()

    def open(self, tenant: str, secrets: Iterable[SealedSecret]) -> dict[str, str]:
        """Values by name, of a job of this tenant. Raises SecretsUnusable."""
        return {secret.name: self._value_of(tenant, secret) for secret in secrets}

    def _value_of(self, tenant: str, secret: SealedSecret) -> str:
        if not self._keys:
            raise SecretsUnusable(
                f"its secret {secret.name} cannot be opened: this node has no EF_SECRETS_KEY; give it that of the pool"
            )
        for key in self._keys:
            try:
                content = json.loads(SealedBox(key).decrypt(b64decode(secret.sealed, validate=True)))
                if (content["tenant"], content["name"]) == (tenant, secret.name) and isinstance(content["value"], str):
                    return content["value"]
                break
            except (CryptoError, ValueError, TypeError, KeyError):
                continue
        raise SecretsUnusable(
            f"its secret {secret.name} was not sealed by tenant {tenant} for the key of this node: submit the job again"
        )


# --- workers secret ------------------------------------------------------------------------------------
# The file with the secret of a pool by which workers of a job know each other (docs/adr/0070).

VARIABLE, FILE_NAME = "EF_WORKERS_SECRET_FILE", "workers.secret"


def workers_secret_file(environment: Mapping[str, str]) -> Path | None:
    """The workers' secret file of an executor with this environment, or None if there is none. It is the file that is
    named, or else one beside its key, or else one in its data folder."""
    if named := file_named(environment, VARIABLE):
        return named
    key = file_named(environment, "EF_NATS_CREDS")
    data_dir = Path(environment.get("EF_DATA_DIR") or ".eflow").absolute()
    folders = (key.parent, data_dir) if key else (data_dir,)
    return next((folder / FILE_NAME for folder in folders if (folder / FILE_NAME).exists()), None)
