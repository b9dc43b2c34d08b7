"""Files that are synced before they are named: the order of the calls of the operating system."""

import os
from pathlib import Path

import pytest

from elasticflow.shared.runtime.process.files import rename_durably, write_durably


def test_content_and_then_the_new_name_are_synced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unfinished, file = tmp_path / ".file.part", tmp_path / "file"
    synced = list[tuple[Path, bool]]()

    def fsync(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")), file.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_durably(unfinished, b"content")
    rename_durably(unfinished, file)
    assert synced == [(unfinished, False), (tmp_path, True)]
    assert file.read_bytes() == b"content"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
