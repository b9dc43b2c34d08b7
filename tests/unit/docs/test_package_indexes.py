"""Docstrings of packages that list their files name all of them, and no others."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER, FILE = re.compile(r"^ *(\w+)/ ", re.M), re.compile(r"^ *(\w+\.py) ", re.M)
NOT_LISTED = {"__init__.py", "__main__.py"}


def index_of(package: Path) -> str:
    return ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""


PACKAGES = [
    init.parent
    for top in ("shared", "services", "simulator", "elasticflow", "benchmarks")
    for init in sorted((ROOT / top).rglob("__init__.py"))
    if FILE.search(index_of(init.parent))
]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: str(package.relative_to(ROOT)))
def test_the_index_of_a_package_names_its_files(package: Path) -> None:
    index = index_of(package)
    folders = [package, *(package / name for name in FOLDER.findall(index))]
    there = {path.name for folder in folders for path in folder.glob("*.py")}
    assert set(FILE.findall(index)) - NOT_LISTED == there - NOT_LISTED


def test_some_packages_have_an_index() -> None:
    assert len(PACKAGES) >= 3
