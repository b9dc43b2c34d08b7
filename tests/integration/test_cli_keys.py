"""`eflow keys` and `eflow doctor` on the command line."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elasticflow.cli.app import app
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EF_KEYS_DIR", str(tmp_path / "keys"))
    monkeypatch.delenv("EF_POOL", raising=False)
    return tmp_path / "keys"


def eflow(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, result.output
    return result.output


def test_keys_are_made_listed_and_revoked(folder: Path) -> None:
    assert f'include "{folder}/accounts.conf"' in eflow("keys", "init", "--pool", "lab")
    shown = eflow("keys", "add", "tenant", "alice")
    assert f"export EF_NATS_CREDS={folder}/tenant-alice.seed EF_POOL=lab EF_TENANT=alice" in shown
    shown = eflow("keys", "add", "node", "gpu-7")
    assert "EF_NODE_ID=gpu-7" in shown
    assert "put workers.secret beside its key there" in shown
    assert f"export EF_WORKERS_SECRET_FILE={folder}/workers.secret" in eflow("keys", "workers")
    listed = json.loads(eflow("keys", "list", "--json"))
    names = ["node gpu-7", "operator operator", "service services", "tenant alice"]
    assert sorted(f"{key['role']} {key['name']}" for key in listed["keys"]) == names
    for file in ("tenant-alice.seed", "workers.secret"):
        assert (folder / file).read_text() not in eflow("keys", "list")
        assert (folder / file).stat().st_mode & 0o077 == 0
    eflow("keys", "revoke", "tenant", "alice")
    assert "alice" not in eflow("keys", "list")


def test_the_secret_of_workers_is_made_once_also_in_a_data_folder(tmp_path: Path) -> None:
    file = tmp_path / "data" / "workers.secret"
    assert str(file) in eflow("keys", "workers", "--data-dir", str(file.parent))
    secret = file.read_text()
    assert json.loads(eflow("keys", "workers", "--data-dir", str(file.parent), "--json")) == {"file": str(file)}
    assert file.read_text() == secret


def test_a_mistake_is_one_line(folder: Path) -> None:
    assert f"eflow: no keys in {folder}; `eflow keys init --keys {folder}` makes them" in eflow("keys", "list", code=2)
    eflow("keys", "init")
    assert "is no name: use 1 to 64 letters" in eflow("keys", "add", "tenant", "a.b", code=2)


def test_doctor_ends_with_1_if_something_is_wrong(nats_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EF_REPLICAS", "1")
    shown = eflow("doctor", "--nats-url", nats_server.url, "--pool", "nowhere", code=1)
    assert "wrong    streams         stream EF_SUBMIT_nowhere is missing: run `eflow configure --pool nowhere`" in shown
    findings = json.loads(eflow("doctor", "--nats-url", nats_server.url, "--pool", "nowhere", "--json", code=1))
    assert {"check": "connection", "problem": "", "unknown": ""} in findings
