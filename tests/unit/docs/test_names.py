"""No text installs the projects of other people that have our module's or our command's name at the package index."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_INSTALLERS = r"(?:pip[\d.]*|uv|uv pip|uv tool|poetry|pdm|conda|mamba)[ \"',\]]+(?:install|add|download|wheel)\b"
_RUNNERS = r"(?:uvx|pipx install|pipx run|uv run --with|uv tool run)\b"
_FOREIGN = r"(?:elasticflow|eflow)(?![\w/.-])"
FOREIGN_INSTALLATION = re.compile(rf"(?:{_INSTALLERS}|{_RUNNERS})[^\n;&|#]*?(?<![\w/.-]){_FOREIGN}|{_FOREIGN}\[[a-z]")


def _texts() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name and Path(name).name != Path(__file__).name]


def test_no_text_installs_a_foreign_project() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in _texts()
        if path.is_file() and not path.is_symlink()
        for match in FOREIGN_INSTALLATION.finditer(path.read_bytes().decode(errors="ignore"))
    ]
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "pip install elasticflow",
        "pip install 'elasticflow[train]'",
        'sudo /opt/elasticflow/bin/pip install -U "elasticflow>=0.1"',
        "uv pip install torch eflow",
        '["pip", "install", "elasticflow"]',
        "uvx eflow",
        "install elasticflow[web] with pip",
    ],
)
def test_such_a_text_would_be_found(text: str) -> None:
    assert FOREIGN_INSTALLATION.search(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install 'elasticflow_training-0.1.0-py3-none-any.whl[train]'",
        "pip install ./elasticflow",
        "pip uninstall elasticflow",
        "pip install '.[train]' && eflow up",
        "/opt/elasticflow/bin/pip install '.[train]'",
    ],
)
def test_our_own_installation_is_none(text: str) -> None:
    assert not FOREIGN_INSTALLATION.search(text)
