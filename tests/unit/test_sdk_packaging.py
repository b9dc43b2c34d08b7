"""A user's code as an archive."""

import hashlib
import io
import os
import sys
import zipfile

import pytest

from elasticflow import packaging
from elasticflow.packaging import PackagingFailed, package

SOURCE = """
from elasticflow import ElasticJob

class Mine(ElasticJob):
    pass
"""


def names_in(archive: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(archive)).namelist()


def test_a_file_is_sent_alone(tmp_path):
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "secret.txt").write_text("not this")
    packed = package(tmp_path / "mine.py")
    assert packed.training_function == "mine:Mine"
    assert packed.code_digest == hashlib.sha256(packed.archive).hexdigest()
    assert names_in(packed.archive) == ["mine.py"]
    assert package(f"{tmp_path}/mine.py:Other").training_function == "mine:Other"


def test_a_package_is_sent_whole_without_what_is_made_from_it(tmp_path):
    inner = tmp_path / "project" / "jobs"
    inner.mkdir(parents=True)
    for file in ("project/__init__.py", "project/data.json", "project/jobs/__init__.py"):
        (tmp_path / file).write_text("")
    (inner / "mine.py").write_text(SOURCE)
    for unwanted in (inner / "__pycache__", tmp_path / "project" / ".git"):
        unwanted.mkdir()
        (unwanted / "file.py").write_text("")
    packed = package(inner / "mine.py")
    assert packed.training_function == "project.jobs.mine:Mine"
    assert names_in(packed.archive) == [
        "project/__init__.py",
        "project/data.json",
        "project/jobs/__init__.py",
        "project/jobs/mine.py",
    ]


def test_same_files_same_bytes_whenever_they_were_written(tmp_path):
    digests = set()
    for folder, modified_s in (("a", 1_000_000_000), ("b", 1_500_000_000)):
        file = tmp_path / folder / "mine.py"
        file.parent.mkdir()
        file.write_text(SOURCE)
        os.utime(file, (modified_s, modified_s))
        digests.add(package(file).code_digest)
    assert len(digests) == 1


def test_a_class_is_found_by_its_source(tmp_path, monkeypatch):
    (tmp_path / "module_with_a_job.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    import module_with_a_job  # pyright: ignore[reportMissingImports]

    packed = package(module_with_a_job.Mine)
    assert packed.training_function == "module_with_a_job:Mine"
    assert packed.archive == package(tmp_path / "module_with_a_job.py").archive
    del sys.modules["module_with_a_job"]


def test_the_archive_is_importable_as_it_is(tmp_path, monkeypatch):
    (tmp_path / "importable_job.py").write_text(
        "ANSWER = 42\nclass ElasticJob: ...\nclass A(ElasticJob): ..."
    )
    archive = tmp_path / "code.zip"
    archive.write_bytes(package(tmp_path / "importable_job.py").archive)
    (tmp_path / "importable_job.py").unlink()
    monkeypatch.syspath_prepend(archive)
    import importable_job  # pyright: ignore[reportMissingImports]

    assert importable_job.ANSWER == 42
    del sys.modules["importable_job"]


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("two.py", SOURCE + SOURCE.replace("Mine", "Yours"), "found: Mine, Yours"),
        ("heir.py", SOURCE + "\nclass Heir(Mine): ...\n", "found: Mine, Heir"),
        ("none.py", "x = 1", "found: none"),
        ("broken.py", "def", "is no Python source"),
        ("not-a-name.py", SOURCE, "is no module name"),
    ],
)
def test_code_that_cannot_be_sent_is_refused_in_words(tmp_path, file, content, reason):
    (tmp_path / file).write_text(content)
    with pytest.raises(PackagingFailed, match=reason):
        package(tmp_path / file)


def test_a_private_base_is_not_meant(tmp_path):
    (tmp_path / "heir.py").write_text(SOURCE.replace("Mine", "_Base") + "\nclass Heir(_Base): ...\n")
    assert package(tmp_path / "heir.py").training_function == "heir:Heir"


def test_missing_file_and_too_much_code(tmp_path, monkeypatch):
    with pytest.raises(PackagingFailed, match="there is no file"):
        package(tmp_path / "missing.py")
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.setattr(packaging, "MAX_ARCHIVE_BYTES", 10)
    with pytest.raises(PackagingFailed, match="at most 10 can be sent"):
        package(tmp_path / "mine.py")


def test_class_within_a_function_is_refused():
    class Local:
        pass

    with pytest.raises(PackagingFailed, match="at the top of a source file"):
        package(Local)
