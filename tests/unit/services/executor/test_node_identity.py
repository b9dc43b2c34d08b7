"""The lock of a node's name on one machine."""

from pathlib import Path

import pytest

from elasticflow.services.executor.node_identity import only_executor
from elasticflow.shared.errors import BadSettings
from tests.support.executor_node import node_specification


def test_the_lock_names_the_last_executor_that_ran_since_the_machine_was_started(tmp_path: Path) -> None:
    with only_executor(tmp_path, node_specification("a")) as previous_run_id:
        assert previous_run_id == ""
        with pytest.raises(BadSettings, match="already runs here"), only_executor(tmp_path, node_specification("x")):
            pass
    with only_executor(tmp_path, node_specification("b")) as previous_run_id:
        assert previous_run_id == "a"
    (lock,) = (tmp_path / "services").iterdir()
    lock.write_text("b another-boot")
    with only_executor(tmp_path, node_specification("c")) as previous_run_id:
        assert previous_run_id == ""
