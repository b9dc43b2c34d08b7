"""Files that are whole, also after a crash of the machine, or not there: written under another name, then renamed."""

import os
from pathlib import Path


def write_durably(path: Path, content: bytes) -> None:
    """Returns once the content is on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def rename_durably(path: Path, name: Path) -> None:
    """In the same folder. The new name survives a crash of the machine, too."""
    path.replace(name)
    folder = os.open(name.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
