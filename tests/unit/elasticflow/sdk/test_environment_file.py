"""The environment of a job's own as its user describes it: a lock of uv, requirements, or a pyproject.toml."""

from pathlib import Path

import pytest

from elasticflow.errors import InvalidJob
from elasticflow.sdk.job import ElasticJob
from elasticflow.sdk.requirements import EnvironmentFile, read_environment

LOCK = """
version = 1
revision = 3
requires-python = ">=3.11"

[[package]]
name = "mine"
version = "0.1"
source = { virtual = "." }
dependencies = [
    { name = "numpy", marker = "python_full_version < '3.13'" },
    { name = "tools", extra = ["fast"] },
    { name = "elasticflow-training" },
    { name = "sent" },
]

[package.dev-dependencies]
dev = [{ name = "pytest" }]

[[package]]
name = "sent"
version = "0.1"
source = { editable = "packages/sent" }
dependencies = [{ name = "einops" }]

[[package]]
name = "elasticflow-training"
version = "0.1.0"
source = { directory = "../elasticflow" }

[[package]]
name = "numpy"
version = "1.26.4"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://host/numpy.whl", hash = "sha256:00" }]

[[package]]
name = "tools"
version = "2.0"
source = { git = "https://host/tools?subdirectory=python&rev=main#0123abc" }

[package.optional-dependencies]
fast = [{ name = "quick" }]

[[package]]
name = "quick"
version = "1.0"
source = { registry = "https://mirror/simple" }
resolution-markers = ["python_full_version < '3.12'"]

[[package]]
name = "quick"
version = "2.0"
source = { registry = "https://mirror/simple" }
resolution-markers = ["python_full_version == '3.12.*'", "python_full_version >= '3.13'"]

[[package]]
name = "einops"
version = "0.8.2"
source = { registry = "https://pypi.org/simple" }

[[package]]
name = "pytest"
version = "9.0"
source = { registry = "https://pypi.org/simple" }
"""
NUMPY_FROM = '{ registry = "https://pypi.org/simple" }\nwheels'
GIT = "tools @ git+https://host/tools@0123abc#subdirectory=python"


def written(folder: Path, text: str, name: str = "uv.lock") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_a_lock_gives_what_its_projects_need_in_its_versions(tmp_path: Path) -> None:
    assert read_environment(written(tmp_path, LOCK)) == EnvironmentFile(
        requirements=(
            "--extra-index-url https://mirror/simple",
            "numpy ; python_full_version < '3.13'",
            GIT.replace("tools @", "tools[fast] @"),
            "einops",
        ),
        constraints=(
            "numpy==1.26.4",
            GIT,
            "einops==0.8.2",
            "quick==1.0 ; (python_full_version < '3.12')",
            "quick==2.0 ; (python_full_version == '3.12.*') or (python_full_version >= '3.13')",
        ),
        requires_python=">=3.11",
    )


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("version = 1\n", "version = 9\n", "is no lock of a format that is read here; export it: `uv export"),
        (NUMPY_FROM, '{ path = "numpy.whl" }\nwheels', "numpy comes from numpy.whl of this machine"),
        ('"https://mirror/simple"', '"../wheels"', "quick comes from ../wheels of this machine"),
        ('"https://mirror/simple"', '"https://me:word@mirror/simple"', "quick: it has a password"),
        ('git = "https://host', 'git = "https://me:word@host', "tools: it has a password"),
        ('{ name = "einops" }', '{ name = "absent" }', "cannot be read (KeyError('absent')); export it"),
        (LOCK, "version = 1\n", "has no project whose packages could be installed"),
        ("version = 1", "version =", "is no TOML"),
    ],
)
def test_a_lock_that_nodes_cannot_follow_is_refused(tmp_path: Path, was: str, now: str, said: str) -> None:
    assert was in LOCK
    with pytest.raises(InvalidJob) as refused:
        read_environment(written(tmp_path, LOCK.replace(was, now)))
    assert said in str(refused.value)


def test_a_lock_gives_the_libraries_of_the_extras_of_elasticflow(tmp_path: Path) -> None:
    """elasticflow itself is the node's."""
    extras = 'source = { directory = "../elasticflow" }\noptional-dependencies = { wandb = [{ name = "einops" }] }'
    lock = LOCK.replace('{ name = "elasticflow-training" }', '{ name = "elasticflow-training", extra = ["wandb"] }')
    lock = lock.replace('source = { directory = "../elasticflow" }', extras).replace(
        '[{ name = "einops" }]\n\n', "[]\n\n"
    )
    found = read_environment(written(tmp_path, lock))
    assert "einops" in found.requirements
    assert [each for each in found.constraints if each.startswith("einops==")]


def test_requirements_and_a_project_are_read_as_for_packages(tmp_path: Path) -> None:
    plain = written(tmp_path, "numpy<2  # old\n-r more.txt\n", "requirements.txt")
    written(tmp_path, "einops\n", "more.txt")
    assert read_environment(plain) == EnvironmentFile(("numpy<2", "einops"))
    project = '[project]\nname = "a"\nrequires-python = ">=3.12"\ndependencies = ["numpy<2"]\n'
    assert read_environment(written(tmp_path, project, "pyproject.toml")) == EnvironmentFile(("numpy<2",), (), ">=3.12")
    with pytest.raises(InvalidJob, match="has no dependencies"):
        read_environment(written(tmp_path, "project = 3\n", "pyproject.toml"))


def test_a_job_has_the_file_and_the_python_that_it_was_given_last(tmp_path: Path) -> None:
    job = ElasticJob().set_own_environment(written(tmp_path, "numpy<2\n", "requirements.txt"))
    own = job.set_own_environment(python="3.12").own_environment
    assert own is not None
    assert (own.python, own.requirements, own.constraints) == ("3.12", ("numpy<2",), ())
    lock = job.set_own_environment(written(tmp_path, LOCK)).own_environment
    assert lock is not None
    assert (lock.python, len(lock.constraints)) == ("3.12", 5)


@pytest.mark.parametrize(
    ("python", "requires", "said"),
    [
        ("3.10", ">=3.9", "3.10 is none that nodes can have; ask for 3.11, 3.12 or 3.13"),
        ("three", ">=3.9", "three is none that nodes can have"),
        ("3.11", ">=3.12", "needs Python >=3.12, which Python 3.11 is not"),
        ("3.12.1", ">=3.12.4", "needs Python >=3.12.4, which Python 3.12.1 is not"),
        (None, ">=3.14", "which Python 3.11, 3.12 or 3.13 is not"),
        (None, "new", "requires-python 'new' cannot be read"),
        ("3.12", ">=3.12.4", ""),
        ("3.12.5", ">=3.12.4", ""),
        (None, "", ""),
    ],
)
def test_a_python_must_be_one_that_the_file_permits(tmp_path: Path, python: str, requires: str, said: str) -> None:
    project = f'[project]\nname = "a"\nrequires-python = "{requires}"\ndependencies = []\n'
    job, file = ElasticJob(), written(tmp_path, project, "pyproject.toml")
    if not said:
        assert job.set_own_environment(file, python=python).own_environment is not None
        return
    with pytest.raises(InvalidJob) as refused:
        job.set_own_environment(file, python=python)
    assert said in str(refused.value)
