"""The files of large results, after the end of their load: its client deletes them, or else some executor."""

import shutil
from collections.abc import Collection
from pathlib import Path

KEEP_S = 86_400.0  # since the last file of the load


def delete_old_results(folder: Path, live_load_ids: Collection[str], now_s: float) -> None:
    """Delete the results of loads that ended long ago. Executors that share the folder may do so at once."""
    for results in folder.glob("*/"):
        try:
            is_old = now_s - results.stat().st_mtime > KEEP_S
        except OSError:  # deleted meanwhile
            continue
        if is_old and results.name not in live_load_ids:
            shutil.rmtree(results, ignore_errors=True)
