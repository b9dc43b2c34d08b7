"""The file with the secret of a pool by which workers of a job know each other (docs/adr/0070)."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from elasticflow.shared.runtime.process.private_file import file_named

VARIABLE, FILE_NAME = "EF_WORKERS_SECRET_FILE", "workers.secret"
_NUM_BYTES = 32


def keep_workers_secret(file: Path) -> None:
    """Make the file if it is absent, complete from the first moment, and readable by its owner only."""
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as opened:
            opened.write(secrets.token_hex(_NUM_BYTES) + "\n")
        os.link(fresh, file)
    except FileExistsError:  # of another process, at the same time
        pass
    finally:
        fresh.unlink()


def workers_secret_file(environment: Mapping[str, str]) -> Path | None:
    """Of an executor with this environment: the file that is named, or else one beside its key, or else one in its data
    folder. None: there is none."""
    if named := file_named(environment, VARIABLE):
        return named
    key = file_named(environment, "EF_NATS_CREDS")
    data_dir = Path(environment.get("EF_DATA_DIR") or ".eflow").absolute()
    folders = (key.parent, data_dir) if key else (data_dir,)
    return next((folder / FILE_NAME for folder in folders if (folder / FILE_NAME).exists()), None)
