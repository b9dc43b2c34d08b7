"""A user's code as an archive that nodes can import: the same files give the same bytes on every machine."""

import ast
import hashlib
import importlib.util
import inspect
import io
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from elasticflow.client.command_requests import Package
from elasticflow.sdk.workdir import PackagingFailed
from elasticflow.shared.messages.job_spec import SCRIPT, TORCHRUN
from elasticflow.shared.messages.limits import MAX_ARCHIVE_BYTES

_OURS = "elasticflow"
_ATTACH = ("elastic", "elastic_trainer")  # what a script calls, directly or in an adapter
_SCRIPTS = (SCRIPT, TORCHRUN)
_LOADED = sys.stdlib_module_names | {"numpy", "torch"}  # in each worker
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can hold


def package(source: type | str | Path, workdir: str | Path | None = None) -> Package:
    """The code of a job: its source file or, if a package holds that, the folder of the outermost package. What this
    code imports from beside it (modules, packages) is part of the archive. With a workdir: all files of that folder,
    except those that its .eflowignore names.

    source: the class itself, "path/to/file.py:Class", or "path/to/file.py" with one subclass of ElasticJob or with a
    call of `elasticflow.elastic` or an adapter. A path is parsed, not imported. Raises PackagingFailed.
    """
    file, class_name = _located(source)
    root = _import_root(file)
    parts = file.relative_to(root).with_suffix("").parts
    module = ".".join(parts).removesuffix(".__init__")
    if not all(part.isidentifier() for part in parts):
        _require_script(file, class_name)
        root, module = file.parent, file.name  # it runs as `python train.v2.py` runs it
    _refuse_hidden_elasticflow(root, module)
    imported = _with_local_imports(root, file, module)
    _refuse_hidden_modules(root, imported, file if class_name in _SCRIPTS else None)
    if workdir is None:
        folder, files = root, sorted(imported)
    else:
        folder = Path(workdir).resolve()
        files = _all_files(folder, file, root)
        _refuse_hidden_elasticflow(folder, module)
    archive = _archive(folder, files)
    import_folder = root.relative_to(folder).as_posix().removeprefix(".")
    return Package(f"{module}:{class_name}", hashlib.sha256(archive).hexdigest(), archive, import_folder)


def _require_script(file: Path, class_name: str) -> None:
    """Check that a file without a module's name is a script that can be run. Raises PackagingFailed."""
    if class_name not in _SCRIPTS:
        raise PackagingFailed(
            f"{file.name} cannot be imported: {file.stem} or a package above it is no module name; rename it"
        )
    if any(char in ":\\" or not char.isprintable() for char in file.name):
        raise PackagingFailed(f"{file.name!a} cannot be run: give it a name without :, \\ and control characters")


def _all_files(workdir: Path, file: Path, root: Path) -> list[Path]:
    """All files of a workdir that has the file and the folder that it is imported from. Raises PackagingFailed."""
    from elasticflow.sdk.workdir import IGNORE_FILE, files_of_workdir  # its library is needed for a workdir only

    if not workdir.is_dir():
        raise PackagingFailed(f"the workdir {workdir} is no folder")
    if not root.is_relative_to(workdir):
        raise PackagingFailed(f"{file} is imported from {root}, which is not within the workdir {workdir}; name {root}")
    files = [workdir / name for name in files_of_workdir(workdir)]  # and folders
    if file not in files:
        raise PackagingFailed(f"{file} is left out of the workdir by {workdir / IGNORE_FILE} or a default pattern")
    return files


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
    return file, class_name if separator else _what_to_run(file, str(source))


_SHOWN_CLASSES = 5  # of a file, in an error


def _what_to_run(file: Path, given: str) -> str:
    """The only job class in it, or SCRIPT. given: its path as the user typed it."""
    try:
        tree = ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError) as error:
        raise PackagingFailed(f"{file} is no Python source: {error}") from error
    names = [name for name in _job_classes(tree, file, {file}) if not name.startswith("_")]
    if not names and _calls_elastic(tree):
        return SCRIPT
    if len(names) > 1:
        choices = " or ".join(f"{given}:{name}" for name in names[:_SHOWN_CLASSES])
        raise PackagingFailed(f"{file} has {len(names)} subclasses of ElasticJob: choose one, as {choices}")
    if not names:
        classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
        other = f"; if {classes[0]} derives from one elsewhere, choose {given}:{classes[0]}" if classes else ""
        raise PackagingFailed(
            f"{file} has no subclass of ElasticJob{other}. A script must call elasticflow.elastic, or the adapter of "
            "its library, in this file itself; --torchrun takes one as it is, if it runs with torchrun"
        )
    return names[0]


def _job_classes(tree: ast.Module, file: Path, read: set[Path]) -> list[str]:
    """Classes at the top of the file that derive from ElasticJob, directly or through classes of modules beside it.

    read: files that were begun; added to here.
    """
    family, found, root = {"ElasticJob"}, list[str](), _import_root(file)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(_last_name(base) in family for base in node.bases):
            family.add(node.name)
            found.append(node.name)
        for module, names in _imported(node, file, root):
            called = {name.name: name.asname or name.name for name in names}
            family.update(called.get(each, each) for each in _job_classes_of(module, read))
    return found


def _job_classes_of(module: Path, read: set[Path]) -> list[str]:
    """The job classes of a module beside the user's file; [] if there is none, or if it is not valid."""
    file = next((each for each in (module.with_suffix(".py"), module / "__init__.py") if each.is_file()), None)
    if file is None or file in read:
        return []
    read.add(file)
    return _job_classes(_parsed(file), file, read)


def _parsed(file: Path) -> ast.Module:
    """The parsed file, without a statement if it is not valid: only the job's own file has to be."""
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _imported(node: ast.stmt, file: Path, root: Path) -> Iterator[tuple[Path, list[ast.alias]]]:
    """Modules that the statement imports, as a path without suffix, each with the names that it takes from it."""
    if isinstance(node, ast.Import):
        yield from ((root.joinpath(*alias.name.split(".")), []) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        folder = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else root
        yield folder.joinpath(*(node.module or "").split(".")), node.names


def _calls_elastic(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.Call) and _last_name(node.func) in _ATTACH for node in ast.walk(tree))


def _last_name(base: ast.expr) -> str:
    """The name of a base class, without the module that it is looked up in."""
    return ast.unparse(base).rpartition(".")[2]


def _import_root(file: Path) -> Path:
    """The folder that must be on sys.path: above the outermost package that holds the file."""
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _refuse_hidden_elasticflow(root: Path, module: str) -> None:
    """Refuse a file or package named `elasticflow` on a user's path, which hides the library."""
    found = next((path for path in (root / _OURS, root / f"{_OURS}.py") if path.exists()), None)
    is_library = (root / _OURS / "sdk" / "job.py").is_file()  # a checkout
    if module.partition(".")[0] == _OURS or (found is not None and not is_library):
        raise PackagingFailed(f"{found or root} hides the installed package elasticflow; rename it")


def _refuse_hidden_modules(root: Path, imported: set[Path], script: Path | None) -> None:
    """A worker has loaded other modules of these names, so it would not import the user's. The script itself is run."""
    for file in sorted(imported):
        name = file.relative_to(root).parts[0].removesuffix(".py")
        if name in _LOADED and file != script:
            raise PackagingFailed(f"{file} has the name of another module, which jobs import instead: rename {name}")


def _with_local_imports(root: Path, file: Path, module: str) -> set[Path]:
    """The files of the module, and of the modules beside it that it imports, directly or indirectly."""
    names, done, files = [module.partition(".")[0]], {_OURS}, set[Path]()
    if module == file.name:  # a script that no module imports
        names, files = [*_imports_of(file)], {file}
    while names:
        if (name := names.pop()) not in done:
            done.add(name)
            found = _files_of(root, name)
            files.update(found)
            names += [imported for file in found if file.suffix == ".py" for imported in _imports_of(file)]
    return files


def _files_of(root: Path, name: str) -> list[Path]:
    """All files of the package, the module's file, or the sources in a folder without __init__.py; [] if this folder
    has no such module."""
    folder, file = root / name, root / f"{name}.py"
    if (folder / "__init__.py").is_file():
        return list(_sources(folder))
    if file.is_file():
        return [file]
    if folder.is_dir() and not _is_installed(name):
        return [source for source in _sources(folder) if source.suffix == ".py"]
    return []


def _is_installed(name: str) -> bool:
    """Whether Python prefers another module to a folder without __init__.py."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def _imports_of(file: Path) -> set[str]:
    """Top-level names that the file imports by absolute name."""
    names = set[str]()
    for node in ast.walk(_parsed(file)):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.partition(".")[0])
    return names


def _sources(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if path.is_file() and not hidden and path.suffix != ".pyc":
            yield path


def _archive(root: Path, files: list[Path]) -> bytes:
    names = [file.relative_to(root).as_posix() + ("/" if file.is_dir() else "") for file in files]
    for name in names:
        if name != name.encode(errors="replace").decode():
            raise PackagingFailed(f"the name of {name!a} in {root} is no text in UTF-8; give the file another one")
    num_bytes = (
        sum(file.stat().st_size for file in files if file.is_file())
        + sum(76 + 2 * len(name.encode()) for name in names)
        + 22
    )
    if num_bytes > MAX_ARCHIVE_BYTES:  # with the headers of each file and of the archive
        raise PackagingFailed(
            f"the code in {root} is {num_bytes:,} bytes, at most {MAX_ARCHIVE_BYTES:,} can be sent; keep data elsewhere"
        )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:  # compressors differ between machines
        for file, name in zip(files, names, strict=True):
            entry = zipfile.ZipInfo(name, _TIMESTAMP)
            entry.create_system = 3  # Unix, whatever this is
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, b"" if entry.is_dir() else file.read_bytes())
    return buffer.getvalue()
