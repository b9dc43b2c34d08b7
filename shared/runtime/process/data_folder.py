"""The name of a data folder, by which nodes say whether they share one."""

import contextlib
import re
from pathlib import Path

from elasticflow.shared.runtime.process.private_file import keep_token

FILE_NAME = "folder.id"


def data_folder_name(data_dir: Path) -> str:
    """Made once, by the first executor on the folder; "" where it cannot be kept or read."""
    file = data_dir / FILE_NAME
    with contextlib.suppress(OSError):
        keep_token(file)
        found = re.match("[0-9a-f]{16}", file.read_text(errors="replace"))
        return found[0] if found else ""
    return ""
