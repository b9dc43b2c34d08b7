"""Files that settings name, and those among them that only their owner may read."""

import stat
from collections.abc import Mapping
from pathlib import Path

from elasticflow.shared.errors import BadSettings


def file_named(environment: Mapping[str, str], name: str) -> Path | None:
    """The file that this variable names; None if it is unset or empty."""
    value = environment.get(name, "")
    return Path(value).absolute() if value else None


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
