"""A result is its value, or the file with the value; what cannot be read is said in one sentence."""

import hashlib
import pickle
from pathlib import Path

import pytest

from elasticflow.client.loads import value_of
from elasticflow.errors import ResultFileUnusable, TaskError
from elasticflow.shared.messages.padding_tasks import TaskResult

PICKLED = pickle.dumps("large")
DIGEST = hashlib.sha256(PICKLED).hexdigest()
IN_FILE = TaskResult(index=4, file_digest=DIGEST, attempts=1, task_s=1.0, node_id="n")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    folder = tmp_path / "results" / "load.1f"
    folder.mkdir(parents=True)
    (folder / DIGEST).write_bytes(PICKLED)
    return folder / DIGEST


def test_a_value_lies_in_the_result_or_in_its_file(file: Path) -> None:
    small = TaskResult(index=0, value=pickle.dumps(1), attempts=1, task_s=1.0, node_id="n")
    assert value_of(small, None) == 1
    assert value_of(IN_FILE, file.parent) == "large"


def test_a_failure_is_raised() -> None:
    with pytest.raises(TaskError, match="boom"):
        value_of(TaskResult(index=0, error="boom", attempts=3, task_s=1.0, node_id="n"), None)


def test_a_file_that_cannot_be_used_is_named(file: Path) -> None:
    with pytest.raises(ResultFileUnusable, match=r"task 4 .* node n wrote: .* EF_DATA_DIR"):
        value_of(IN_FILE, None)
    file.write_bytes(b"other")
    with pytest.raises(ResultFileUnusable, match="is damaged"):
        value_of(IN_FILE, file.parent)
    file.unlink()
    with pytest.raises(ResultFileUnusable, match="No such file or directory; all nodes and this machine must share"):
        value_of(IN_FILE, file.parent)
