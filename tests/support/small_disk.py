"""A disk of its own for a test, small enough to fill; it needs root, and is gone afterwards."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of this size at a new folder; the test is skipped where that cannot be done."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    folder.mkdir(parents=True)
    mount = ("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
