"""Files that settings name, and those among them that only their owner may read."""

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from elasticflow.shared.errors import BadSettings

_TOKEN_BYTES = 32


def file_named(environment: Mapping[str, str], name: str) -> Path | None:
    """The file that this variable names; None if it is unset or empty."""
    value = environment.get(name, "")
    return Path(value).absolute() if value else None


def keep_token(file: Path) -> None:
    """Make a file with a random token if it is absent: complete from the first moment, readable by its owner only."""
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as opened:
            opened.write(secrets.token_hex(_TOKEN_BYTES) + "\n")
        os.link(fresh, file)
    except FileExistsError:  # of another process, at the same time
        pass
    finally:
        fresh.unlink()


def private_bytes(name: str, file: Path) -> bytes:
    """The content of a file that no other user can read. name: of its setting. Raises BadSettings."""
    if problem := readable_by_others(file):
        raise BadSettings((f"{name}={file}: {problem}",))
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadSettings((f"{name}={file}: cannot be read ({error})",)) from None


def readable_by_others(file: Path) -> str | None:
    """Why a file is no secret, and what to do; None if it is one, or is not there."""
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
    except OSError:
        return None
    return f"mode {mode:04o} lets other users read it; run: chmod 600 {file}" if mode & 0o077 else None
