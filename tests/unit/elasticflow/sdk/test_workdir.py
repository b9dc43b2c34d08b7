"""A project folder as the code of a job."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from elasticflow.sdk import workdir
from elasticflow.sdk.packaging import PackagingFailed, package
from elasticflow.sdk.submission import load

SOURCE = """
from elasticflow import ElasticJob

class Mine(ElasticJob):
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path, {"train.py": SOURCE, "config.yaml": "depth: 3", "helpers/net.py": "", "helpers/words.txt": "a"})
    return tmp_path


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def names_in(archive: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(archive)).namelist()


def names_of(project: Path, file: str = "train.py") -> list[str]:
    return names_in(package(project / file, project).archive)


def test_all_files_of_the_folder_are_sent(project: Path) -> None:
    packed = package(project / "train.py", project)
    assert names_in(packed.archive) == ["config.yaml", "helpers/net.py", "helpers/words.txt", "train.py"]
    assert (packed.training_function, packed.import_folder) == ("train:Mine", "")
    assert packed == package(project / "train.py", str(project))
    assert names_in(package(project / "train.py").archive) == ["train.py"], "only what it imports, without a workdir"


def test_a_folder_of_which_no_file_is_sent_is_sent_empty(project: Path) -> None:
    """A script that writes `runs/1.csv` at home does not make the folder."""
    (project / "empty" / "deep").mkdir(parents=True)
    write(project, {"runs/old.pt": "x", "data/old.csv": "x", ".eflowignore": "runs/\n/data/*\n", ".git/config": "x"})
    archive = package(project / "train.py", project).archive
    assert [name for name in names_in(archive) if name.endswith("/")] == ["data/", "empty/deep/", "runs/"]
    with zipfile.ZipFile(io.BytesIO(archive)) as unpacked:
        unpacked.extractall(project / "copy")
    assert {path.name for path in (project / "copy").iterdir() if path.is_dir()} == {"data", "empty", "helpers", "runs"}


def test_caches_versions_environments_and_keys_are_left_out(project: Path) -> None:
    unwanted = (
        *(".git/config", ".venv/bin/python", "helpers/__pycache__/net.pyc", "node_modules/a.js", ".env"),
        *(".eflow/run.json", "net.egg-info/PKG-INFO"),
    )
    before = names_of(project)
    write(project, dict.fromkeys(unwanted, "x"))
    assert names_of(project) == before


def test_the_ignore_file_has_the_form_of_git(project: Path) -> None:
    lines = "# comment\n/data/\n*.ckpt\n!best.ckpt\n/notes.txt\n!.env\n"
    write(project, {".eflowignore": lines, ".env": "", "data/a.bin": "", "helpers/data/b.bin": "", "notes.txt": ""})
    write(project, {"helpers/notes.txt": "", "old.ckpt": "", "best.ckpt": ""})
    found = set(names_of(project))
    assert found >= {".env", "helpers/data/b.bin", "helpers/notes.txt", "best.ckpt", ".eflowignore"}
    assert not found & {"data/a.bin", "notes.txt", "old.ckpt"}


def test_a_file_in_a_folder_is_imported_from_there(project: Path) -> None:
    write(project, {"jobs/train.py": SOURCE, "package/__init__.py": "", "package/train.py": SOURCE})
    packed = package(project / "jobs" / "train.py", project)
    assert (packed.training_function, packed.import_folder) == ("train:Mine", "jobs")
    packed = package(project / "package" / "train.py", project)
    assert (packed.training_function, packed.import_folder) == ("package.train:Mine", "")


def test_a_workdir_without_the_file_is_refused(project: Path) -> None:
    write(project, {"package/__init__.py": "", "package/train.py": SOURCE, ".eflowignore": "/train.py\n"})
    with pytest.raises(PackagingFailed, match=f"is imported from {project}, which is not within the workdir"):
        package(project / "package" / "train.py", project / "package")
    with pytest.raises(PackagingFailed, match=r"train\.py is left out of the workdir by .*\.eflowignore"):
        package(project / "train.py", project)
    with pytest.raises(PackagingFailed, match="missing is no folder"):
        package(project / "train.py", project / "missing")


def test_a_link_out_of_the_folder_is_named(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "key").write_text("secret")
    for target, name in ((outside, "helpers/all"), (outside / "key", "helpers/key"), (Path("../.."), "helpers/up")):
        (project / name).symlink_to(target)
        with pytest.raises(PackagingFailed, match=f"{name} is a link out of the workdir {project}: {target}. Replace"):
            package(project / "train.py", project)
        (project / name).unlink()
    (project / "helpers" / "none").symlink_to("absent")
    with pytest.raises(PackagingFailed, match="helpers/none is a link nowhere: absent"):
        package(project / "train.py", project)
    write(project, {".eflowignore": "helpers/none\n"})
    assert "train.py" in names_of(project)


def test_a_link_within_the_folder_is_sent_as_its_file(project: Path) -> None:
    (project / "same.yaml").symlink_to("config.yaml")
    packed = package(project / "train.py", project)
    assert zipfile.ZipFile(io.BytesIO(packed.archive)).read("same.yaml") == b"depth: 3"
    (project / "again").symlink_to("helpers")  # a loop is possible
    with pytest.raises(PackagingFailed, match="again is a link to a folder: helpers"):
        package(project / "train.py", project)


def test_a_folder_of_2_gb_is_refused_with_its_largest_paths(project: Path) -> None:
    for name in ("data/train/a.bin", "data/train/b.bin", "model.ckpt"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        with (project / name).open("wb") as file:
            os.truncate(file.fileno(), 700_000_000)  # no block of it is written
    with pytest.raises(PackagingFailed) as refused:
        package(project / "train.py", project)
    said = str(refused.value)
    assert "7 files of 2,100,000," in said
    assert "The largest: data/train (1,400.0 MB), model.ckpt (700.0 MB), " in said
    assert f"Name what the job does not need in {project}/.eflowignore" in said


def test_too_many_files_are_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workdir, "MAX_ARCHIVE_FILES", 3)
    with pytest.raises(PackagingFailed, match="has 4 files of"):
        package(project / "train.py", project)


def test_a_socket_is_not_sent(project: Path) -> None:
    before = names_of(project)
    os.mkfifo(project / "pipe")
    assert names_of(project) == before


def test_a_folder_that_cannot_be_read_is_named_unless_it_is_ignored(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = project / "closed"
    closed.mkdir()
    scandir = os.scandir

    def refusing(folder: Any) -> Any:  # tests may run as root, who reads all
        if Path(folder) == closed:
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(PackagingFailed, match=r"closed cannot be read: Permission denied; name it in \.eflowignore"):
        package(project / "train.py", project)
    (project / ".eflowignore").write_text("closed/\n")
    package(project / "train.py", project)


def test_a_name_that_is_no_utf8_is_refused(project: Path) -> None:
    (project / os.fsdecode(b"caf\xe9.py")).touch()
    with pytest.raises(PackagingFailed, match=r"the name of 'caf\\udce9\.py' in .* is no text in UTF-8"):
        package(project / "train.py", project)


def test_a_job_is_loaded_with_its_workdir(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [str(project)])
    write(project, {"jobs/job_of_workdir.py": f"import module_of_workdir\n{SOURCE}", "module_of_workdir.py": ""})
    _, code = load(str(project / "jobs" / "job_of_workdir.py"), workdir=project)
    assert code is not None
    assert code.import_folder == "jobs"
    assert "config.yaml" in names_in(code.archive)
