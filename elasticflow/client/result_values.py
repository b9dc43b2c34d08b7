"""What the tasks of a padding load returned: a value in its message, or in a file of the pool's data folder."""

import hashlib
import pickle
import re
from pathlib import Path
from typing import Any

from elasticflow.errors import ResultFileUnusable, TaskError
from elasticflow.shared.messages.limits import TOKEN_PATTERN
from elasticflow.shared.messages.padding_tasks import TaskResult
from elasticflow.shared.runtime.process.folder_tree import delete_folder


def value_of(result: TaskResult, load_id: str, data_dir: Path | None) -> Any:
    """What the task returned; runs code of its pickle. Raises as `pickled_value_of`."""
    return pickle.loads(pickled_value_of(result, load_id, data_dir))


def pickled_value_of(result: TaskResult, load_id: str, data_dir: Path | None) -> bytes:
    """What the task returned, as its runner pickled it. data_dir: of the pool, None if it is unknown.

    Raises TaskError if it failed for good, ResultFileUnusable.
    """
    if result.error:
        raise TaskError(result.index, result.attempts, result.error, result.traceback)
    if result.value is not None:
        return result.value
    if data_dir is None:
        why = "the pool's data folder is not known here: give it as data_dir (--data-dir, EF_DATA_DIR)"
        raise ResultFileUnusable(result.index, result.file_digest, result.node_id, why)
    file = _folder(data_dir, load_id) / result.file_digest
    try:
        pickled = file.read_bytes()
    except OSError as error:
        why = f"{file}: {error.strerror}; all nodes and this machine must share the data folder"
        raise ResultFileUnusable(result.index, result.file_digest, result.node_id, why) from None
    if hashlib.sha256(pickled).hexdigest() != result.file_digest:
        raise ResultFileUnusable(result.index, result.file_digest, result.node_id, f"{file} is damaged")
    return pickled


def delete_result_files(load_id: str, data_dir: Path | None) -> None:
    """Delete what `value_of` has read, once no result of the load is needed."""
    if data_dir is not None:
        delete_folder(_folder(data_dir, load_id))


def _folder(data_dir: Path, load_id: str) -> Path:
    """Raises ValueError if the id of the load would lead to another folder; admission opens no such load."""
    if not re.fullmatch(TOKEN_PATTERN, load_id):
        raise ValueError(f"{load_id!r} is no id of a padding load")
    return data_dir / "results" / load_id
