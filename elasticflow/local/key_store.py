"""The keys of a pool, in a folder of its operator. Only the server's configuration leaves it whole.

keys.json            the pool's name and the public keys
accounts.conf        what NATS servers include: accounts, users and permissions; no secret
secrets.key          the private key for secrets of jobs; mode 0600
workers.secret       the secret by which workers of a job know each other; mode 0600
<role>-<name>.seed   the secret key for one process or person; mode 0600
"""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from elasticflow.errors import KeysUnusable
from elasticflow.shared.messages.limits import TOKEN_PATTERN
from elasticflow.shared.runtime.bus.nats.permissions import PublicKey, Role, server_configuration
from elasticflow.shared.runtime.process.files import keep_token
from elasticflow.shared.runtime.process.secret_sealing import FILE_NAME

_KEYS_FILE = "keys.json"
_ACCOUNTS_FILE = "accounts.conf"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStore:
    """Immutable; each change returns the store that is on the disk then."""

    folder: Path
    pool: str
    keys: tuple[PublicKey, ...] = ()

    @property
    def accounts_file(self) -> Path:
        return self.folder / _ACCOUNTS_FILE

    @property
    def secrets_file(self) -> Path:
        return self.folder / "secrets.key"

    @property
    def workers_secret_file(self) -> Path:
        return self.folder / FILE_NAME

    def seed_file(self, role: Role, name: str) -> Path:
        return self.folder / f"{role}-{name}.seed"

    def add(self, role: Role, name: str) -> "KeyStore":
        """Make a key and its file. Raises KeysUnusable if there is one of this name."""
        _check_name(self.folder, name)
        if self._named(role, name):
            raise _unusable(self.folder, f"there is a key for {role} {name}; revoke it first")
        seed, public = _new_key()
        _write(self.seed_file(role, name), seed)
        return self._saved((*self.keys, PublicKey(role, name, public)))

    def revoke(self, role: Role, name: str) -> "KeyStore":
        """Forget a key and delete its file. Raises KeysUnusable if there is none."""
        if not (revoked := self._named(role, name)):
            raise _unusable(self.folder, f"there is no key for {role} {name}; `eflow keys list` lists all")
        self.seed_file(role, name).unlink(missing_ok=True)
        return self._saved(key for key in self.keys if key not in revoked)

    def _named(self, role: Role, name: str) -> tuple[PublicKey, ...]:
        return tuple(key for key in self.keys if (key.role, key.name) == (role, name))

    def _saved(self, keys: Iterable[PublicKey]) -> "KeyStore":
        store = KeyStore(folder=self.folder, pool=self.pool, keys=tuple(sorted(keys)))
        content = {"pool": store.pool, "keys": [asdict(key) for key in store.keys]}
        _write(self.folder / _KEYS_FILE, json.dumps(content, indent=2) + "\n")
        _write(store.accounts_file, server_configuration(store.pool, store.keys))
        return store


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    pool: str
    keys: tuple[PublicKey, ...]


_CONTENT = TypeAdapter(_Content)


def create(folder: Path, pool: str) -> KeyStore:
    """A folder with one key for the operator and one for the services. Raises KeysUnusable if it has keys already."""
    _check_name(folder, pool)
    if (folder / _KEYS_FILE).exists():
        raise _unusable(folder, "it has keys already; choose another folder")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    store = KeyStore(folder=folder, pool=pool).add(Role.OPERATOR, "operator").add(Role.SERVICE, "services")
    keep_token(store.workers_secret_file)
    return store


def read(folder: Path) -> KeyStore:
    """Raises KeysUnusable."""
    try:
        content = _CONTENT.validate_json((folder / _KEYS_FILE).read_bytes())
    except FileNotFoundError:
        problem = f"no keys in {folder}; `eflow keys init --keys {folder}` makes them"
        raise KeysUnusable("no_keys", problem) from None
    except ValidationError:
        raise _unusable(folder, f"{_KEYS_FILE} is damaged; restore it from a backup") from None
    return KeyStore(folder=folder, pool=content.pool, keys=content.keys)


def _unusable(folder: Path, reason: str) -> KeysUnusable:
    return KeysUnusable("unusable_keys", f"keys in {folder}: {reason}")


def _check_name(folder: Path, name: str) -> None:
    if re.fullmatch(TOKEN_PATTERN, name) is None:
        raise _unusable(folder, f"{name!r} is no name: use 1 to 64 letters, digits, _ and -")


def _new_key() -> tuple[str, str]:
    """The seed and the public key of a new user of NATS."""
    import nkeys  # here: with libraries that only this command and connections with a key need

    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    return seed.decode(), bytes(nkeys.from_seed(bytearray(seed)).public_key).decode()


def _write(file: Path, text: str) -> None:
    """Replace the file; readable by its owner only from the first moment."""
    fresh = file.with_name(f".{file.name}.part")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(text)
    fresh.replace(file)
