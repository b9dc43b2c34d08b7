"""Folders in each other, deeper than Python recurses and than a path may be long."""

import os
from pathlib import Path

DEEP = 1_500


def make_deep(folder: Path, num_folders: int = DEEP) -> None:
    """Folders in each other, and a file in the last one."""
    folder.mkdir()
    current = os.open(folder, os.O_RDONLY)
    for _ in range(num_folders):
        os.mkdir("nested", dir_fd=current)
        below = os.open("nested", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=current))
    os.close(current)
