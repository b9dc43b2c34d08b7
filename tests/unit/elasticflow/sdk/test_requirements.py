"""Requirements as a job carries them."""

from pathlib import Path

import pytest

from elasticflow.errors import InvalidJob
from elasticflow.sdk.job import ElasticJob
from elasticflow.sdk.requirements import read_requirements


def written(folder: Path, text: str, name: str = "requirements.txt") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_of_a_file_that_holds_no_requirements_some_lines_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidJob) as raised:
        read_requirements(written(tmp_path, "import torch\n" * 9))
    assert len(raised.value.problems) == 4
    assert raised.value.problems[-1] == "and 6 more of its lines"


def test_lines_are_read_without_comments_and_with_included_files(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    written(tmp_path / "more", "tqdm # progress\n", "base.txt")
    text = "# mine\n-r more/base.txt\n\neinops[x]>=0.8 ; python_version > '3.9'\n--index-url https://host/simple\n"
    text += "a @ https://host/a-1-py3-none-any.whl#sha256=00\nb==1 \\\n  --hash=sha256:00\n--find-links /mnt/wheels\n"
    assert read_requirements(written(tmp_path, text)) == (
        "tqdm",
        "einops[x]>=0.8 ; python_version > '3.9'",
        "--index-url https://host/simple",
        "a @ https://host/a-1-py3-none-any.whl#sha256=00",
        "b==1    --hash=sha256:00",
        "--find-links /mnt/wheels",
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("einops>>1", "line 2: einops>>1: no requirement: "),
        ("./wheels/a.whl", "line 2: ./wheels/a.whl: no requirement: "),
        ("-e .", "it names files of this machine; put code into the workdir"),
        ("-c versions.txt", "it names files of this machine"),
        ("--find-links wheels", "the folder is relative to this machine"),
        ("--index-url https://me:secret@host/simple", "it has a password"),
        ("-r requirements.txt", "files include each other"),
        ("-r absent.txt", "absent.txt"),
    ],
)
def test_a_line_that_nodes_cannot_install_is_named(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        read_requirements(written(tmp_path, f"tqdm\n{line}\n"))
    assert said in str(refused.value)


def test_the_dependencies_of_a_project_are_requirements(tmp_path: Path) -> None:
    file = written(tmp_path, '[project]\nname = "p"\ndependencies = ["einops>=0.8", "tqdm"]\n', "pyproject.toml")
    assert read_requirements(file) == ("einops>=0.8", "tqdm")
    for text, said in (("[project]\n", "no dependencies in"), ("[", "is no TOML"), ("project = 1", "no dependencies")):
        with pytest.raises(InvalidJob, match=said):
            read_requirements(written(tmp_path, text, "pyproject.toml"))


class Mine(ElasticJob):
    hyperparameters = {"global_batch_size": 8}  # noqa: RUF012
    max_iterations = 1
    environment = {"A": "1"}  # noqa: RUF012
    requirements = ("tqdm",)


def test_a_job_has_them_in_its_specification(tmp_path: Path) -> None:
    job = Mine().set_deadline(within=60)
    assert (job.spec().environment, job.spec().requirements) == ({"A": "1"}, ("tqdm",))
    job.set_environment({"B": "2"}).set_requirements(written(tmp_path, "einops\n"))
    assert (job.spec().environment, job.spec().requirements) == ({"A": "1", "B": "2"}, ("einops",))
    assert Mine.environment == {"A": "1"}
    job.set_environment({"RANK": "0"})
    with pytest.raises(InvalidJob, match="environment: must be without RANK, which the pool sets for its workers"):
        job.spec()
