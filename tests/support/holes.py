"""For tests of log files that lose their beginning."""

from pathlib import Path

import pytest

from elasticflow.shared.runtime.process.files import BLOCK_BYTES, NoHoles, free_beginning


def skip_without_holes(folder: Path) -> None:
    """Skip the test if files of this filesystem cannot have holes."""
    trial = folder / "trial"
    trial.write_bytes(b"x" * BLOCK_BYTES)
    with trial.open("r+b") as file:
        try:
            free_beginning(file.fileno(), BLOCK_BYTES)
        except NoHoles:
            pytest.skip("this filesystem has no holes")
    trial.unlink()
