"""The folder that the processes of a job work in."""

import os
import sys
from pathlib import Path
from typing import Literal

import pytest

from elasticflow.services.executor.worker.process.working_folder import in_job_folder
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan
from testbed.histories import spec

DIGEST = "0" * 64


@pytest.fixture(autouse=True)
def restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code" / "data").mkdir(parents=True)
    (tmp_path / "code" / "data" / "input.txt").write_text("sent")


def assignment(
    tmp_path: Path, *, digest: str = DIGEST, purpose: Literal["train", "profile"] = "train", rank: int = 0
) -> Assignment:
    return Assignment(
        job_id="a",
        plan=GenerationPlan(generation=1, world_size=2),
        rank=rank,
        spec=spec(training_function="train:Digits", code_digest=digest, import_folder="src" if digest else ""),
        purpose=purpose,
        checkpoint_dir=str(tmp_path / "a"),
        code_path=str(tmp_path / "code") if digest else "",
    )


def test_a_job_works_in_a_copy_of_what_was_sent_and_later_workers_find_it_as_it_was_left(tmp_path: Path) -> None:
    with in_job_folder(assignment(tmp_path)) as job:
        assert Path("data/input.txt").read_text() == "sent"
        assert Path.cwd() == tmp_path / "a" / "files"
        assert (job.code_path, sys.path[0]) == (f"{Path.cwd()}/src", str(Path.cwd())), "imported from the copy, too"
        Path("data/input.txt").write_text("changed")
        Path("output.txt").touch()
    with in_job_folder(assignment(tmp_path, rank=1)):
        assert Path("data/input.txt").read_text() == "changed"
        assert Path("output.txt").exists()
    assert (tmp_path / "code" / "data" / "input.txt").read_text() == "sent"


def test_a_copy_that_was_interrupted_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "a" / "files" / "data").mkdir(parents=True)
    (tmp_path / "a" / "files" / "data" / "input.txt").write_text("se")
    with in_job_folder(assignment(tmp_path)):
        assert Path("data/input.txt").read_text() == "sent"


def test_other_code_under_the_same_name_replaces_the_code(tmp_path: Path) -> None:
    with in_job_folder(assignment(tmp_path)):
        Path("output.txt").touch()
    (tmp_path / "code" / "data" / "input.txt").write_text("newer")
    with in_job_folder(assignment(tmp_path, digest="1" * 64)):
        assert Path("data/input.txt").read_text() == "newer"
        assert Path("output.txt").exists()


def test_the_workers_of_a_profiling_run_share_a_copy_that_the_last_one_deletes(tmp_path: Path) -> None:
    first = in_job_folder(assignment(tmp_path, purpose="profile"))
    second = in_job_folder(assignment(tmp_path, purpose="profile", rank=1))
    with second:
        Path("downloaded").touch()
        with first:
            assert Path("downloaded").exists()
        assert Path("data/input.txt").exists()
    assert not (tmp_path / "a").exists()


def test_a_class_that_the_node_knows_is_imported_from_where_the_executor_runs(tmp_path: Path) -> None:
    with in_job_folder(assignment(tmp_path, digest="")) as job:
        assert job.code_path == str(tmp_path)
        assert Path.cwd() == tmp_path / "a" / "files"


def test_a_class_trains_without_a_copy_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("no folder can be made here")
    with in_job_folder(assignment(tmp_path)) as job:
        assert (job.code_path, Path.cwd()) == (f"{tmp_path}/code/src", tmp_path)
