"""Nodes that do not share a data folder are named, with what to do."""

from dataclasses import replace
from pathlib import Path

import pytest

from elasticflow.client.doctor import data_folder_problems
from elasticflow.services.executor.node_identity import FILE_NAME, data_folder_name
from testbed.histories import History
from tests.support.worker_events import joined


def problems(*folders: str) -> list[str]:
    history = History()
    for number, folder in enumerate(folders):
        history.then(replace(joined("first", f"node-{number}"), data_folder=folder))
    return list(data_folder_problems(history.state.nodes.values()))


def test_one_folder_and_folders_without_a_name_are_sound() -> None:
    assert problems() == problems("a", "a", "") == []


def test_different_folders_are_named_by_group() -> None:
    (found,) = problems("a", "b", "a")
    assert found.startswith("nodes do not share their data folder: node-0, node-2; node-1: a job that moves")


def test_a_folder_keeps_its_name_and_another_one_has_another(tmp_path: Path) -> None:
    names = [data_folder_name(tmp_path / folder) for folder in ("one", "one", "two")]
    assert names[0] == names[1] != names[2]
    assert all(len(name) == 16 for name in names)


@pytest.mark.parametrize("content", [b"", b"\xff\x00 not a name", b"short"])
def test_a_damaged_name_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert data_folder_name(tmp_path) == ""
