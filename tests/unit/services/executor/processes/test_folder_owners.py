"""Folders of jobs that have the same id, one after the other."""

from pathlib import Path

from elasticflow.services.executor.processes.prepared_folders import PLACES, forget_owners, take_folders
from elasticflow.shared.runtime.process.folder_tree import are_folders_of


def folders(data_dir: Path, job_id: str = "a") -> list[Path]:
    made = [data_dir / place / job_id for place in PLACES]
    for folder in made:
        folder.mkdir(parents=True)
        (folder / "file").write_text("of the first job")
    return made


def test_a_job_keeps_its_folders(tmp_path: Path) -> None:
    assert take_folders(tmp_path, "a", "first") == []
    made = folders(tmp_path)
    assert take_folders(tmp_path, "a", "first") == [], "at its next start, by this executor or by another one"
    assert all((folder / "file").exists() for folder in made)
    assert are_folders_of(tmp_path, "a", "first")


def test_a_later_job_of_the_same_id_finds_nothing_of_the_earlier_one(tmp_path: Path) -> None:
    take_folders(tmp_path, "a", "first")
    made = folders(tmp_path)
    assert not are_folders_of(tmp_path, "a", "second"), "before its first worker starts, too"
    moved = take_folders(tmp_path, "a", "second")
    assert moved == [folder.with_name("a.of-first") for folder in made], "nothing is lost"
    assert not any(folder.exists() for folder in made)
    assert (are_folders_of(tmp_path, "a", "second"), are_folders_of(tmp_path, "a", "first")) == (True, False)
    assert take_folders(tmp_path, "a", "second") == []


def test_a_killed_executor_has_moved_them_or_the_next_one_does(tmp_path: Path) -> None:
    take_folders(tmp_path, "a", "first")
    checkpoints, logs = folders(tmp_path)
    checkpoints.rename(checkpoints.with_name("a.of-first"))  # and was killed
    assert take_folders(tmp_path, "a", "second") == [logs.with_name("a.of-first")]


def test_folders_without_an_owner_become_those_of_the_job(tmp_path: Path) -> None:
    made = folders(tmp_path)
    assert are_folders_of(tmp_path, "a", "first"), "what an earlier version has left"
    assert take_folders(tmp_path, "a", "first") == []
    assert all(folder.exists() for folder in made)


def test_records_go_with_the_folders_of_ended_jobs(tmp_path: Path) -> None:
    for job_id in ("live", "kept", "gone"):
        take_folders(tmp_path, job_id, "first")
    folders(tmp_path, "kept")
    forget_owners(tmp_path, {"live"})
    assert sorted(file.name for file in (tmp_path / "owners").iterdir()) == [".lock", "kept", "live"]
