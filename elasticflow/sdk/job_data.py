"""Data of a job: the URI as its user writes it, and the path at which its processes find it."""

import os
from pathlib import Path

from elasticflow.shared.messages.job_environment import DATA_NAMES_OF_OURS, DATA_VARIABLE


def uri_of(data: str | Path) -> str:
    """A path becomes a file:// URI, which names the same path on each node; a URI stays as it is."""
    text = str(data)
    return text if "://" in text else Path(os.path.abspath(Path(text).expanduser())).as_uri()


def data_path(name: str) -> Path:
    """In the processes of a job: the file or folder of its data of this name, for reading. Raises KeyError.

    Code that does not import elasticflow finds it in the variable EF_DATA_<name>.
    """
    if name not in DATA_NAMES_OF_OURS and (path := os.environ.get(f"{DATA_VARIABLE}{name}")):
        return Path(path)
    known = sorted(
        found
        for variable in os.environ
        if variable.startswith(DATA_VARIABLE)
        and (found := variable.removeprefix(DATA_VARIABLE)) not in DATA_NAMES_OF_OURS
    )
    has = f"it has {', '.join(known)}" if known else "it has none, or this is no process of a job"
    raise KeyError(f"this job has no data {name!r}: {has}; submit it with --data {name}=URI, or set_data")
