"""A user's code as an archive that nodes can import: the same bytes for the same files, wherever it is made."""

import ast
import hashlib
import inspect
import io
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shared.messages.job import SCRIPT

MAX_ARCHIVE_BYTES = 16 * 1024 * 1024
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can hold


class Package(NamedTuple):
    training_function: (
        str  # "package.module:Class", or ":__main__" for a script, as importable with the archive on sys.path
    )
    code_digest: str  # SHA-256 of the archive
    archive: bytes  # zip


class PackagingFailed(ValueError):
    """This code cannot be sent; the sentence says why."""


def package(source: type | str | Path) -> Package:
    """The code of a job: its source file or, if that is part of a package, the outermost package's folder.

    source: the class itself, "path/to/file.py:Class", or "path/to/file.py" with one subclass of ElasticJob or with a
    call of `elasticflow.elastic`. Nothing is imported for a path. Raises PackagingFailed.
    """
    file, class_name = _located(source)
    root = _import_root(file)
    module = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    if not module.replace(".", "_").isidentifier():
        raise PackagingFailed(f"{file.name} cannot be imported: {module} is no module name")
    top = root / file.relative_to(root).parts[0]
    archive = _archive(root, [file] if top == file else sorted(_sources(top)))
    return Package(f"{module}:{class_name}", hashlib.sha256(archive).hexdigest(), archive)


def _located(source: type | str | Path) -> tuple[Path, str]:
    if isinstance(source, type):
        module = sys.modules[source.__module__]
        if "." in source.__qualname__ or not getattr(module, "__file__", None):
            raise PackagingFailed(f"{source.__qualname__} must stand at the top of a source file")
        return Path(inspect.getfile(source)).resolve(), source.__name__
    path, separator, class_name = str(source).rpartition(".py:")
    file = Path(f"{path}.py" if separator else source).resolve()
    if not file.is_file():
        raise PackagingFailed(f"there is no file {file}")
    return file, class_name if separator else _what_to_run(file)


def _what_to_run(file: Path) -> str:
    """The only job class in it, or SCRIPT."""
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError) as error:
        raise PackagingFailed(f"{file} is no Python source: {error}") from error
    family = ["ElasticJob"]
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(_last_name(base) in family for base in node.bases):
            family.append(node.name)
    names = [name for name in family[1:] if not name.startswith("_")]
    if not names and _calls_elastic(tree):
        return SCRIPT
    if len(names) != 1:
        found = ", ".join(names) or "none"
        raise PackagingFailed(
            f"{file} must hold one subclass of ElasticJob (found: {found}); or name it: {file.name}:Class. "
            "A script must call elasticflow.elastic"
        )
    return names[0]


def _calls_elastic(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.Call) and _last_name(node.func) == "elastic" for node in ast.walk(tree))


def _last_name(base: ast.expr) -> str:
    """Without the module that it is looked up in."""
    return ast.unparse(base).rpartition(".")[2]


def _import_root(file: Path) -> Path:
    """The folder that must be on sys.path: above the outermost package that holds the file."""
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _sources(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if path.is_file() and not hidden and path.suffix != ".pyc":
            yield path


def _archive(root: Path, files: list[Path]) -> bytes:
    total = sum(file.stat().st_size for file in files)
    if total > MAX_ARCHIVE_BYTES:
        raise PackagingFailed(
            f"the code under {files[0].parent} is {total:,} bytes, at most {MAX_ARCHIVE_BYTES:,} can be sent; "
            "keep data elsewhere"
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:  # compressors differ between machines
        for file in files:
            entry = zipfile.ZipInfo(file.relative_to(root).as_posix(), _TIMESTAMP)
            entry.create_system = 3  # Unix, whatever this is
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, file.read_bytes())
    return buffer.getvalue()
