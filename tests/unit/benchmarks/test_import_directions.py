"""Benchmarks and tests share the test bed; neither benchmarks nor the test bed import tests."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FORBIDDEN = {"benchmarks": {"tests"}, "testbed": {"tests", "benchmarks"}}


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_no_import_runs_against_the_layers(folder: str) -> None:
    wrong = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in (ROOT / folder).rglob("*.py")
        for name in _imported(file)
        if name.split(".")[0] in FORBIDDEN[folder]
    ]
    assert wrong == []


def _imported(file: Path) -> list[str]:
    nodes = list(ast.walk(ast.parse(file.read_text())))
    whole = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return whole + [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
