"""What a fetch copies, and what it says if there is nothing to copy. Without a network."""

import errno
from pathlib import Path

import fsspec
import pytest

from elasticflow.services.executor.worker.preparation import fetch_data
from elasticflow.services.executor.worker.preparation.fetch_data import fetch
from elasticflow.shared.messages.worker_protocol.forking import FetchData, FromPreparer, NotPrepared, Prepared


@pytest.fixture(autouse=True)
def bucket() -> None:
    """In memory, as fsspec has it for its own tests."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    for name in ("one.txt", "deep/two.txt", "deep/three/four.txt"):
        memory.pipe(f"/bucket/set/{name}", name.encode())


def files_in(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("uri", ["memory://bucket/set", "memory://bucket/set/"])
def test_a_folder_is_copied_under_its_name_with_all_that_it_holds(uri: str, tmp_path: Path) -> None:
    fetch(uri, tmp_path / "result")
    names = ("one.txt", "deep/two.txt", "deep/three/four.txt")
    assert files_in(tmp_path / "result") == {f"set/{name}": name for name in names}


def test_a_file_is_copied_under_its_name(tmp_path: Path) -> None:
    fetch("memory://bucket/set/deep/two.txt", tmp_path / "result")
    assert files_in(tmp_path / "result") == {"two.txt": "deep/two.txt"}


def reply(uri: str, folder: Path) -> FromPreparer:
    return fetch_data.fetch_data(FetchData(folder=str(folder), uri=uri, environment={}))


def test_what_cannot_be_fetched_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reply("memory://bucket/set", tmp_path) == Prepared()
    for uri, said in (
        ("memory://bucket/absent", "it does not exist: "),
        ("nowhere://bucket/set", "ValueError: Protocol not known: nowhere"),
    ):
        answer = reply(uri, tmp_path)
        assert isinstance(answer, NotPrepared)
        assert answer.error.startswith(said)


def test_a_secret_in_an_error_is_not_shown_even_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    value = "-".join(["hidden"] * 20)

    def failing(uri: str, target: Path) -> None:
        raise ValueError("x" * 7_950 + value)

    monkeypatch.setattr(fetch_data, "fetch", failing)
    answer = fetch_data.fetch_data(FetchData(folder=str(tmp_path), uri="s3://b", environment={"KEY": value}))
    assert isinstance(answer, NotPrepared)
    assert "hidden" not in answer.error + capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            PermissionError("Forbidden"),
            "permission denied: Forbidden; pass the credentials of its storage as variables",
        ),
        (OSError(errno.ENOSPC, "No space left"), "the disk of this node is full: "),
        (
            ImportError("Install s3fs to access S3"),
            "ImportError: Install s3fs to access S3; install it beside the executor",
        ),
        (RuntimeError("503"), "RuntimeError: 503"),
        (
            PermissionError("Unable to locate credentials"),
            "the job has no credentials for it (Unable to locate credentials): pass AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY with --secret",
        ),
    ],
)
def test_errors_of_libraries_are_put_in_words(
    error: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(uri: str) -> None:
        raise error

    monkeypatch.setattr("fsspec.core.url_to_fs", fails)
    answer = reply("s3://bucket/set", tmp_path)
    assert isinstance(answer, NotPrepared)
    assert answer.error.startswith(said)
