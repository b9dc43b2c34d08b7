"""Docstrings of packages that list their files name all of them, and no others; what other text names is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER, FILE = re.compile(r"^ *(\w+)/ ", re.M), re.compile(r"^ *(\w+\.py) ", re.M)
NAMED = re.compile(r"`([\w/]+\.py)`")
NOT_LISTED = {"__init__.py", "__main__.py"}
TOPS = ("shared", "services", "simulator", "elasticflow", "benchmarks", "testbed", "examples")


def index_of(package: Path) -> str:
    return ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""


PACKAGES = [
    init.parent
    for top in TOPS
    for init in sorted((ROOT / top).rglob("__init__.py"))
    if FILE.search(index_of(init.parent))
]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: str(package.relative_to(ROOT)))
def test_the_index_of_a_package_names_its_files(package: Path) -> None:
    index = index_of(package)
    folders = [package, *(package / name for name in FOLDER.findall(index))]
    there = {path.name for folder in folders for path in folder.glob("*.py")}
    assert set(FILE.findall(index)) - NOT_LISTED == there - NOT_LISTED


def test_files_that_the_code_and_explanations_name_are_there() -> None:
    code = [file for top in TOPS for file in (ROOT / top).rglob("*.py")]
    there = {part for file in (*code, *(ROOT / "tests").rglob("*.py")) for part in _endings(file.relative_to(ROOT))}
    texts = [*code, *(ROOT / "docs" / "explanation").glob("*.md")]
    named = {(file.name, name) for file in texts for name in NAMED.findall(file.read_text()) if name not in there}
    assert named == set()


def _endings(file: Path) -> list[str]:
    """The file by its name alone, with its folder, with its two folders, and so on."""
    return ["/".join(file.parts[start:]) for start in range(len(file.parts))]


def test_some_packages_have_an_index() -> None:
    assert len(PACKAGES) >= 2
