"""Whether all code is compiled is known without a compiler."""

import platform
from pathlib import Path

import pytest

from elasticflow.shared import machine_code


def test_it_is_complete_once_that_was_noted_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "folder", lambda: tmp_path)
    assert not machine_code.is_complete()
    machine_code.note_complete()
    assert machine_code.is_complete()
    monkeypatch.setattr(platform, "node", lambda: "of-another-processor")
    assert not machine_code.is_complete()


def test_where_nothing_can_be_written_nothing_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "folder", lambda: None)
    machine_code.note_complete()
    assert not machine_code.is_complete()
