"""Large results of padding tasks: files in the data folder of the pool, named by their content."""

import hashlib
from pathlib import Path

from elasticflow.shared.runtime.process.clock import fresh_id
from elasticflow.shared.runtime.process.durable_file import rename_durably, write_durably


def write_result_file(folder: Path, result: bytes) -> str:
    """Store the result unless an equal one is there; its SHA-256, the name of its file. Raises OSError.

    A file of this name is complete: it is written under another one, and renamed.
    """
    digest = hashlib.sha256(result).hexdigest()
    if (folder / digest).exists():
        return digest
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{digest}.{fresh_id()}.unfinished"
    try:
        write_durably(unfinished, result)
        rename_durably(unfinished, folder / digest)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    return digest
