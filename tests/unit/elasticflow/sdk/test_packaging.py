"""A user's code as an archive."""

import hashlib
import io
import os
import sys
import zipfile

import pytest

from elasticflow.errors import InputUnusable
from elasticflow.sdk import packaging
from elasticflow.sdk.packaging import PackagingFailed, package
from elasticflow.sdk.script import Script
from elasticflow.sdk.submission import load
from tests.support.error_codes import coded

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


@pytest.mark.parametrize("given", ["examples/two.py", "./examples/../examples/two.py"])
def test_a_file_with_two_classes_is_refused_with_the_names_of_both(tmp_path, monkeypatch, given):
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "two.py").write_text(f"{SOURCE}\nclass Other(Mine):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PackagingFailed, match=f"has 2 subclasses .*: choose one, as {given}:Mine or {given}:Other"):
        package(given)
    assert package(f"{given}:Other").training_function == "two:Other", "what is suggested works"


@pytest.mark.parametrize(
    "source",
    [
        "from train import Mine\nclass Late(Mine): pass\n",
        "from train import Mine as Base\nclass Late(Base): pass\n",
        "import train\nclass Late(train.Mine): pass\n",
        "from package.jobs import Other\nclass Late(Other): pass\n",
        "from late import Unknown\nfrom broken import Nothing\nfrom train import Mine\nclass Late(Mine): pass\n",
    ],
)
def test_a_class_may_derive_from_one_of_a_module_beside_it(tmp_path, source):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "jobs.py").write_text("from .base import Mine\nclass Other(Mine): pass\n")
    (tmp_path / "package" / "base.py").write_text(SOURCE)
    (tmp_path / "train.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "late.py").write_text(source)
    assert package(tmp_path / "late.py").training_function == "late:Late"


def test_a_class_of_a_module_beside_it_is_no_job_of_the_file(tmp_path):
    (tmp_path / "train.py").write_text(SOURCE)
    (tmp_path / "late.py").write_text("from train import Mine\nclass Plain: pass\n")
    with pytest.raises(PackagingFailed, match=r"; if Plain derives from one elsewhere, choose .*late.py:Plain. A"):
        package(tmp_path / "late.py")


def test_a_package_is_sent_whole_without_caches_and_hidden_files(tmp_path):
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


def test_modules_that_the_code_imports_from_beside_it_are_sent_with_it(tmp_path):
    sources = {
        "train.py": "import torch\nfrom shared.models import Model\nimport plain.inner\n" + SOURCE,
        "shared/__init__.py": "",
        "shared/models.py": "from services import serve\nfrom . import nothing\n",
        "services.py": "import train\nthis is no Python\n",
        "plain/inner.py": "",
        "plain/data.bin": "in a folder without __init__.py, sources only",
        "unused.py": "",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert names_in(package(tmp_path / "train.py").archive) == sorted(set(sources) - {"plain/data.bin", "unused.py"})


def test_an_installed_package_is_preferred_to_a_folder_without_init(tmp_path):
    (tmp_path / "pytest").mkdir()
    (tmp_path / "pytest" / "checkout.py").touch()
    (tmp_path / "train.py").write_text("import pytest\n" + SOURCE)
    assert names_in(package(tmp_path / "train.py").archive) == ["train.py"]


@pytest.mark.parametrize("name", ["elasticflow.py", "elasticflow/__init__.py", "elasticflow/notes.txt"])
def test_a_project_whose_elasticflow_hides_the_library_is_rejected(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    (tmp_path / "mine.py").write_text(SOURCE)
    hidden_by = tmp_path / name.partition("/")[0]
    with pytest.raises(PackagingFailed, match=f"{hidden_by} hides the installed package elasticflow; rename"):
        package(tmp_path / "mine.py")


def test_the_command_line_names_a_project_whose_elasticflow_hides_the_library(tmp_path):
    (tmp_path / "elasticflow.py").touch()
    (tmp_path / "mine.py").write_text(SOURCE)
    with pytest.raises(
        InputUnusable,
        match=r"elasticflow\.py hides the installed package elasticflow; rename",
        check=coded("not_loadable"),
    ):
        load(str(tmp_path / "mine.py"))


def test_a_module_that_is_a_file_here_is_named_as_a_file(tmp_path, monkeypatch):
    (tmp_path / "mine_here").mkdir()
    (tmp_path / "mine_here" / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputUnusable,
        match=r"Python finds no such module here: name its file, mine_here/train\.py:Mine$",
        check=coded("not_loadable"),
    ):
        load("mine_here.train:Mine")


def test_a_folder_that_lacks_init_is_named_where_its_module_imports_from_above(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "jobs").mkdir()
    (tmp_path / "library_above").mkdir()
    (tmp_path / "jobs" / "below.py").write_text("import library_above.models\n" + SOURCE)
    with pytest.raises(
        InputUnusable,
        match=f"library_above is in {tmp_path}: to import it, put __init__.py into ",
        check=coded("not_loadable"),
    ):
        load(str(tmp_path / "jobs" / "below.py"))
    (tmp_path / "library_above" / "models.py").touch()
    (tmp_path / "jobs" / "__init__.py").touch()
    job, code = load(str(tmp_path / "jobs" / "below.py"))
    assert code is not None
    assert (type(job).__module__, code.training_function) == ("jobs.below", "jobs.below:Mine")
    assert names_in(code.archive) == ["jobs/__init__.py", "jobs/below.py", "library_above/models.py"]
    for name in ("jobs", "jobs.below", "library_above", "library_above.models"):
        del sys.modules[name]


def test_the_same_files_give_the_same_bytes_at_any_modification_time(tmp_path):
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
    (tmp_path / "importable_job.py").write_text("ANSWER = 42\nclass ElasticJob: ...\nclass A(ElasticJob): ...")
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
        (
            "two.py",
            SOURCE + SOURCE.replace("Mine", "Yours"),
            "has 2 subclasses .* as .*/two.py:Mine or .*/two.py:Yours",
        ),
        ("heir.py", SOURCE + "\nclass Heir(Mine): ...\n", "as .*/heir.py:Mine or .*/heir.py:Heir"),
        ("none.py", "x = 1", "has no subclass of ElasticJob. A script must"),
        ("broken.py", "def", "is no Python source"),
        ("not-a-name.py", SOURCE, "is no module name"),
    ],
)
def test_code_that_cannot_be_sent_is_rejected_with_a_reason(tmp_path, file, content, reason):
    (tmp_path / file).write_text(content)
    with pytest.raises(PackagingFailed, match=reason):
        package(tmp_path / file)


def test_a_private_base_class_is_not_a_job(tmp_path):
    (tmp_path / "heir.py").write_text(SOURCE.replace("Mine", "_Base") + "\nclass Heir(_Base): ...\n")
    assert package(tmp_path / "heir.py").training_function == "heir:Heir"


def test_missing_file_and_too_much_code(tmp_path, monkeypatch):
    with pytest.raises(PackagingFailed, match="there is no file"):
        package(tmp_path / "missing.py")
    (tmp_path / "mine.py").write_text(SOURCE)
    monkeypatch.setattr(packaging, "MAX_ARCHIVE_BYTES", 10)
    with pytest.raises(PackagingFailed, match="at most 10 can be sent"):
        package(tmp_path / "mine.py")


def test_a_class_within_a_function_is_rejected():
    class Local:
        pass

    with pytest.raises(PackagingFailed, match="at the top of a source file"):
        package(Local)


ELASTIC = "import elasticflow\nelasticflow.elastic(loader, model, optimizer)\n"


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("my-train.py", "my-train.py:__main__"),
        ("01_train.py", "01_train.py:__main__"),
        ("train.v2.py", "train.v2.py:__main__"),
        ("my train.py", "my train.py:__main__"),
        ("días.py", "días:__main__"),
        ("über.py", "über:__main__"),
        ("random.py", "random:__main__"),
        ("torch.py", "torch:__main__"),
    ],
)
def test_a_script_is_sent_whatever_its_name(tmp_path, name, function):
    (tmp_path / name).write_text(f"import helper\n{ELASTIC}")
    (tmp_path / "helper.py").write_text("import random")
    packed = package(tmp_path / name)
    assert packed.training_function == function
    assert sorted(names_in(packed.archive)) == sorted(["helper.py", name])
    job = Script(tmp_path / name).term_condition(max_iterations=1).set_job_class("best_effort")
    assert job.set_hyperparameter(global_batch_size=1).spec(training_function=function).entry == "__main__"


def test_a_script_of_a_package_that_is_no_module_runs_as_python_runs_it(tmp_path):
    folder = tmp_path / "my scripts"
    folder.mkdir()
    for name in ("__init__.py", "helper.py"):
        (folder / name).touch()
    (folder / "01-train.py").write_text(f"import helper\n{ELASTIC}")
    packed = package(folder / "01-train.py", tmp_path)
    assert (packed.training_function, packed.import_folder) == ("01-train.py:__main__", "my scripts")


@pytest.mark.parametrize("name", ["train.v2.py", "my-job.py", "random.py", "torch.py"])
def test_a_class_whose_module_cannot_be_imported_is_refused(tmp_path, name):
    (tmp_path / name).write_text(SOURCE)
    with pytest.raises(PackagingFailed, match="rename"):
        package(f"{tmp_path / name}:Mine")


def test_a_module_that_hides_another_is_refused(tmp_path):
    """A worker has loaded Python's `queue`, so the script would get that one without a word."""
    (tmp_path / "train.py").write_text(f"import queue\n{ELASTIC}")
    (tmp_path / "queue.py").touch()
    for workdir in (None, tmp_path):
        with pytest.raises(PackagingFailed, match=r"queue.py has the name of another module.*rename queue"):
            package(tmp_path / "train.py", workdir)
