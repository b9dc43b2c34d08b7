"""Pyright answers alike before and after training libraries are installed: the first `make test` has none yet."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
EXTRAS = ("adapters", "mlflow", "safetensors", "tensorboard", "wandb")  # that no check waits for
IGNORED = "examples/libraries"  # in pyproject.toml
FOLDERS = ("elasticflow", "shared", "services", "simulator", "examples", "benchmarks")


def late_packages() -> set[str]:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    distributions = (re.split(r"[^\w-]", each)[0] for extra in EXTRAS for each in extras[extra])
    return {name.replace("-", "_") for name in distributions} - {"elasticflow_training", "torch"}


def imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return [each.name for each in node.names]
        case ast.ImportFrom(level=0, module=str(name)):
            return [name]
        case _:
            return []


def test_imports_of_libraries_that_come_later_say_so_to_pyright() -> None:
    late = late_packages()
    found: list[str] = []
    for file in (each for folder in FOLDERS for each in sorted((ROOT / folder).rglob("*.py"))):
        if str(file.relative_to(ROOT)).startswith(IGNORED):
            continue
        text = file.read_text()
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if {name.split(".")[0] for name in imported(node)} & late:
                assert isinstance(node, ast.Import | ast.ImportFrom)
                found.append(lines[node.lineno - 1])
    assert found, "the adapters import their libraries"
    assert [line.strip() for line in found if "reportMissingImports" not in line] == []
