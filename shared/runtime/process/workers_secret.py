"""The file with the secret of a pool by which workers of a job know each other (docs/adr/0070)."""

from collections.abc import Mapping
from pathlib import Path

from elasticflow.shared.runtime.process.private_file import file_named

VARIABLE, FILE_NAME = "EF_WORKERS_SECRET_FILE", "workers.secret"


def workers_secret_file(environment: Mapping[str, str]) -> Path | None:
    """Of an executor with this environment: the file that is named, or else one beside its key, or else one in its data
    folder. None: there is none."""
    if named := file_named(environment, VARIABLE):
        return named
    key = file_named(environment, "EF_NATS_CREDS")
    data_dir = Path(environment.get("EF_DATA_DIR") or ".eflow").absolute()
    folders = (key.parent, data_dir) if key else (data_dir,)
    return next((folder / FILE_NAME for folder in folders if (folder / FILE_NAME).exists()), None)
