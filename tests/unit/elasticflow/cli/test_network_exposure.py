"""`eflow ui` warns where other machines reach it."""

import asyncio
from pathlib import Path

import pytest

from elasticflow.cli import ui
from elasticflow.cli.ui import exposure_warning
from elasticflow.web import server
from testbed.page_ledger import page_history, write_export

EVERYWHERE = "0.0.0.0"


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file that a container has; absent."""
    file = tmp_path / "containerenv"
    monkeypatch.setattr(ui, "CONTAINER_FILES", (str(file),))
    return file


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_the_loopback_needs_no_warning(container: Path, host: str) -> None:
    assert exposure_warning(host, 8420) == ""


@pytest.mark.parametrize("host", [EVERYWHERE, "::", "10.0.0.7", "gpu-box"])
def test_another_address_is_warned_of_with_what_to_do(container: Path, host: str) -> None:
    warning = exposure_warning(host, 8420)
    assert f"other machines reach {host}:8420, over plain HTTP" in warning
    assert warning.endswith("ssh -L 8420:127.0.0.1:8420 THIS-MACHINE")
    container.touch()
    assert exposure_warning(host, 8420) == ""


@pytest.mark.parametrize(("host", "is_warned"), [(EVERYWHERE, True), ("127.0.0.1", False)], ids=["open", "loopback"])
def test_the_command_prints_it(
    container: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    host: str,
    is_warned: bool,
) -> None:
    async def serve(*arguments: object) -> None:
        """Ends at once."""

    monkeypatch.setattr(server, "serve", serve)
    write_export(page_history(), tmp_path / "run.ledger")
    asyncio.run(ui.serve_file(tmp_path / "run.ledger", ui.PageOptions(host=host), None))
    printed = capsys.readouterr()
    assert printed.err.startswith("warning: other machines reach 0.0.0.0:") == is_warned
    assert "http://127.0.0.1:" in printed.out
