"""Docstrings of packages that list their files name all of them, and no others."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER, FILE = re.compile(r"^ *(\w+)/ ", re.M), re.compile(r"^ *(\w+\.py) ", re.M)
NEVER_LISTED = {"__init__.py", "__main__.py"}


def listed(package: Path) -> list[str]:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text()), clean=False) or ""
    return FILE.findall(docstring)


PACKAGES = [
    init.parent
    for top in ("shared", "services", "simulator", "elasticflow", "benchmarks")
    for init in sorted((ROOT / top).rglob("__init__.py"))
    if listed(init.parent)
]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: str(package.relative_to(ROOT)))
def test_the_index_of_a_package_names_its_files(package: Path) -> None:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text()), clean=False) or ""
    folders = [package / name for name in FOLDER.findall(docstring)] or [package]
    there = {path.name for folder in folders for path in folder.glob("*.py")}
    assert set(listed(package)) - {"__main__.py"} == there - NEVER_LISTED


def test_some_packages_have_an_index() -> None:
    assert len(PACKAGES) >= 3
