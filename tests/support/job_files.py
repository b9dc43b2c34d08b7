"""What jobs leave in a data folder."""

from pathlib import Path

from elasticflow.shared.runtime.process.folder_tree import OWNERS


def keep_files(data_dir: Path, job_id: str, identity: str, *, checkpoints: bool = True) -> None:
    """Of a job of this identity, as its executor records them."""
    (data_dir / OWNERS).mkdir(exist_ok=True)
    (data_dir / OWNERS / job_id).write_text(identity)
    if checkpoints:
        (data_dir / "checkpoints" / job_id).mkdir(parents=True)
