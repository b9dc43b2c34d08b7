"""Completion of job ids: silent without a pool; and the commands that have it."""

import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import typer

from elasticflow.cli import completion
from elasticflow.cli.app import app

GROUP: Any = typer.main.get_command(app)


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NATS_URL", "EF_DATA_DIR", "EF_POOL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"nats://token@127.0.0.1:{server.getsockname()[1]}"


def completed(**where: Any) -> list[completion.Word]:
    return completion.jobs(cast(typer.Context, SimpleNamespace(params=where)), "")


def test_without_a_pool_there_is_nothing_to_complete(capfd: pytest.CaptureFixture[str]) -> None:
    assert completed() == []
    assert completed(data_dir="nowhere", pool="p") == []
    assert completed(nats_url="nats://127.0.0.1:1") == []
    assert completed(nats_url="not a url") == []
    assert capfd.readouterr() == ("", "")


def test_a_server_that_does_not_answer_is_left_after_a_moment(
    silent_server: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert completion.TIMEOUT_S <= 1.0
    monkeypatch.setattr(completion, "TIMEOUT_S", 0.05)
    assert completed(nats_url=silent_server) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("command", "parameter"),
    [
        ("cancel", "name"),
        ("amend", "job_id"),
        ("checkpoint", "job_id"),
        ("explain", "name"),
        ("fetch", "job_id"),
        ("logs", "job_id"),
        ("results", "load_id"),
        ("scale-out", "job_id"),
        ("scale-in", "job_id"),
        ("events", "job"),
    ],
)
def test_a_job_id_is_completed_wherever_it_is_typed(
    command: str, parameter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(completion, "_state", lambda where: asked.append(where))
    context = GROUP.commands[command].make_context(command, [], resilient_parsing=True)
    (found,) = [each for each in GROUP.commands[command].params if each.name == parameter]
    assert found.shell_complete(context, "d") == []
    assert len(asked) == 1
