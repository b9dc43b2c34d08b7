"""A small disk that a test can fill. It needs root, and is removed afterwards."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size_kib: int) -> Iterator[Path]:
    """Mount an ext4 of this size, on a loop device, at a new folder. A machine without these has a tmpfs of that size.
    Skips the test where neither can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    folder.mkdir(parents=True)
    image = folder.with_name(f"{folder.name}.img")
    in_memory = ("mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", folder)
    mounted = subprocess.CompletedProcess[str]((), 1)
    for mount in (("mount", "-o", "loop", image, folder), in_memory) if _formatted(image, size_kib) else (in_memory,):
        mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
        if mounted.returncode == 0:
            break
    else:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
        image.unlink()


def _formatted(image: Path, size_kib: int) -> bool:
    """Whether the file, which takes no space before it is written to, could be made a disk."""
    with image.open("wb") as file:
        file.truncate(size_kib << 10)
    format_it = ("mkfs.ext4", "-q", "-F", "-m", "0", image)
    try:
        return subprocess.run(format_it, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
