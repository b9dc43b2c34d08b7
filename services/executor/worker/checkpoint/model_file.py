"""The model alone, in a file beside the checkpoints: what the executor stores for users (docs/adr/0065).

The executor does not read checkpoints: that needs torch, and they come from users' code.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from elasticflow.services.executor.worker.checkpoint.files import write_state
from elasticflow.shared.messages.worker_protocol.job_files import MODEL_FOLDER, model_file_name
from elasticflow.shared.runtime.process.durable_file import rename_durably

log = structlog.get_logger()


def write_model(checkpoint_dir: Path, iteration: int, model: Mapping[str, Any]) -> None:
    """Replace the file by this state dict. A full disk loses the file, not the job: its checkpoint is written."""
    folder = checkpoint_dir / MODEL_FOLDER
    unfinished = folder / f"{os.getpid()}.unfinished"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / model_file_name(iteration, write_state(unfinished, model))
        rename_durably(unfinished, file)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        log.warning("model_not_written", iteration=iteration, reason=str(error))
        return
    for other in folder.iterdir():
        if other != file:
            with suppress(OSError):  # a folder, say
                other.unlink(missing_ok=True)
