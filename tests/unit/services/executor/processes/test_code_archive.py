"""No archive of a tenant makes the executor's own process allocate more than the archive and one file's buffer."""

import tracemalloc
from pathlib import Path

import pytest

from elasticflow.services.executor.processes import code_archive
from elasticflow.services.executor.processes.code_archive import CodeUnusable
from testbed.hostile_archives import BOMB_BYTES, HOSTILE_ARCHIVES


@pytest.mark.parametrize("name", [name for name in HOSTILE_ARCHIVES if "bomb" in name or "entries" in name])
def test_a_bomb_allocates_little_and_leaves_no_file(name: str, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CodeUnusable, match="cannot be unpacked"):
            code_archive._unpack(HOSTILE_ARCHIVES[name], tmp_path / "code" / "digest")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < BOMB_BYTES // 2
    assert list((tmp_path / "code").iterdir()) == []
