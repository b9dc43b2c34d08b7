"""Packages that a job requires, read from a requirements file, a pyproject.toml or a lock of uv: lines that a node can
install, and what an environment of its own needs beside them.

The lines travel in the job's specification, so a line that means something on this machine only is refused.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from elasticflow.errors import InvalidJob
from elasticflow.shared.messages.limits import PYTHON_PATTERN
from elasticflow.shared.messages.syntax_problems import parsed_toml

_INCLUDE = re.compile(r"(?:-r|--requirement)(?:\s+|=)(.+)")
_FOLDER_OPTION = re.compile(r"(?:-f|--find-links)(?:\s+|=)(.+)")
_CREDENTIALS = re.compile(r"https?://[^/\s@]+@")
_LOCAL_OPTIONS = ("-e", "--editable", "-c", "--constraint")
_MOST_INCLUDES = 20  # files within files
_MOST_PROBLEMS = 3  # named, for example of a file that holds no requirements at all


class _Line(NamedTuple):
    file: Path
    number: int
    text: str

    def problem(self, reason: str) -> str:
        return f"requirements: {self.file}, line {self.number}: {self.text:.100}: {reason}"


def read_requirements(file: str | Path) -> tuple[str, ...]:
    """The lines to install. file: in the form of pip, or pyproject.toml for its dependencies.

    Raises InvalidJob, naming each line that nodes cannot install.
    """
    file = Path(file)
    try:
        if file.name == "pyproject.toml":
            lines = [_Line(file, 0, text) for text in _dependencies(file)]
        else:
            lines = list(_lines(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidJob(f"requirements: {file} cannot be read: {error}") from None
    problems = [line.problem(problem) for line in lines if (problem := line_problem(line.text))]
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        raise InvalidJob(*problems[:_MOST_PROBLEMS], *([f"and {more} more of its lines"] if more > 0 else ()))
    return tuple(line.text for line in lines)


def _dependencies(file: Path) -> list[str]:
    text = file.read_text()
    try:
        project: Any = parsed_toml(text)
        found = project["project"]["dependencies"]
    except ValueError as error:
        raise InvalidJob(f"requirements: {file} is no TOML: {error}") from None
    except (KeyError, TypeError):
        raise InvalidJob(f"requirements: {file} has no dependencies in [project]; name a requirements file") from None
    if not isinstance(found, list) or not all(isinstance(line, str) for line in found):  # pyright: ignore
        raise InvalidJob(f"requirements: {file}: project.dependencies must be an array of texts")
    return found  # pyright: ignore[reportUnknownVariableType]


def _lines(file: Path, depth: int = 0) -> Iterator[_Line]:
    """The lines without comments; included files stand in their place."""
    joined = re.sub(r"\\\n", lambda _: "\0", file.read_text())
    number = 1
    for raw in joined.split("\n"):
        text = re.sub(r"(^|\s+)#.*$", "", raw.replace("\0", " ")).strip()
        line, number = _Line(file, number, text), number + 1 + raw.count("\0")
        if included := _INCLUDE.fullmatch(text):
            if depth == _MOST_INCLUDES:
                raise InvalidJob(line.problem("files include each other; name each once"))
            yield from _lines(file.parent / included[1], depth + 1)
        elif text:
            yield line


def line_problem(text: str) -> str:
    """Why a node cannot install this line; "" if it can."""
    if _CREDENTIALS.search(text):
        return "it has a password, and the ledger is no place for one; configure pip on the nodes (pip.conf)"
    if text.startswith(_LOCAL_OPTIONS):
        return "it names files of this machine; put code into the workdir, and versions into the requirements"
    if folder := _FOLDER_OPTION.fullmatch(text):
        is_there = folder[1].startswith(("/", "https://", "http://", "file:///"))
        return "" if is_there else "the folder is relative to this machine; name one that all nodes have"
    if text.startswith("-"):
        return ""  # another option of pip
    try:
        Requirement(re.split(r"\s+--", text)[0])  # options follow, such as --hash
    except InvalidRequirement as error:
        return f"no requirement: {str(error).splitlines()[0]}"
    return ""


# --- environment file ----------------------------------------------------------------------------------
# The file that describes a job's own environment: a lock of uv, requirements in the form of pip, or a pyproject.toml.

LOCK = "uv.lock"
_LOCK_VERSION = 1  # of its format
_DEFAULT_INDEX = "https://pypi.org/simple"
_OURS = "elasticflow-training"  # each node brings its own
_PYTHONS = tuple(f"3.{minor}.{patch}" for minor in (11, 12, 13) for patch in (0, 99))  # between which a job may choose


class EnvironmentFile(NamedTuple):
    """requirements: lines to install. constraints: exact versions of a lock. requires_python: as packages say it."""

    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    requires_python: str = ""


def read_environment(file: str | Path) -> EnvironmentFile:
    """Raises InvalidJob."""
    file = Path(file)
    if file.name == LOCK:
        return _read_lock(file)
    requires = ""
    if file.name == "pyproject.toml":
        found: Mapping[str, Any] = _parsed(file).get("project", {})
        requires = str(found.get("requires-python", "")) if hasattr(found, "get") else ""
    return EnvironmentFile(read_requirements(file), requires_python=requires)


def check_python(python: str, requires_python: str, file: str) -> None:
    """Raises InvalidJob if an environment cannot have this Python. python: "" for that of the nodes."""
    if not re.fullmatch(PYTHON_PATTERN, python):
        raise InvalidJob(f"python: {python} is none that nodes can have; ask for 3.11, 3.12 or 3.13")
    try:
        wanted = SpecifierSet(requires_python)
    except InvalidSpecifier:
        raise InvalidJob(f"environment: {file}: requires-python {requires_python!r} cannot be read") from None
    possible = [each for each in _PYTHONS if each.startswith(python)] if python.count(".") < 2 else [python]
    if not any(map(wanted.contains, possible)):
        asked = f"Python {python}" if python else "Python 3.11, 3.12 or 3.13"
        raise InvalidJob(f"python: {file} needs Python {requires_python}, which {asked} is not: ask for another one")


# --- a lock of uv --------------------------------------------------------------------------------------


def _read_lock(file: Path) -> EnvironmentFile:
    """What the project of the lock depends on, without extras and groups, and the versions of all that this needs."""
    lock = _parsed(file)
    packages: Sequence[Mapping[str, Any]] = lock.get("package", ())
    if lock.get("version") != _LOCK_VERSION:
        raise InvalidJob(f"environment: {file} is no lock of a format that is read here; export it: {_export(file)}")
    try:
        return _of_lock(file, lock, packages)
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidJob(f"environment: {file} cannot be read ({error!r}); export it: {_export(file)}") from None


def _of_lock(file: Path, lock: Mapping[str, Any], packages: Sequence[Mapping[str, Any]]) -> EnvironmentFile:
    projects = [each for each in packages if _kind(each) in ("virtual", "editable")]
    if not projects:
        raise InvalidJob(f"environment: {file} has no project whose packages could be installed")
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for each in packages:
        by_name.setdefault(each["name"], []).append(each)
    direct = [dependency for project in projects for dependency in project.get("dependencies", ())]
    for dependency in direct:  # it grows: the node brings elasticflow itself, but not the libraries of its extras
        if dependency["name"] == _OURS:
            extras = dependency.get("extra", ())
            libraries = [each.get("optional-dependencies", {}) for each in by_name.get(_OURS, ())]
            direct += [each for of_ours in libraries for extra in extras for each in of_ours.get(extra, ())]
    named = {project["name"] for project in projects} | {_OURS}
    needed = dict.fromkeys(_needed(direct, by_name, named))
    found = [each for name in needed for each in by_name[name]]
    if problems := [problem for each in found if (problem := _problem(each))]:
        raise InvalidJob(*(f"environment: {file}: {problem}" for problem in problems))
    indexes = dict.fromkeys(option for each in found if (option := _index(each)))
    lines = [_requirement(dependency, by_name) for dependency in direct if dependency["name"] not in named]
    constraints = [_pinned(each, is_one_of_several=len(by_name[each["name"]]) > 1) for each in found]
    return EnvironmentFile((*indexes, *dict.fromkeys(lines)), tuple(constraints), str(lock.get("requires-python", "")))


def _needed(
    direct: Sequence[Mapping[str, Any]], by_name: Mapping[str, Sequence[Mapping[str, Any]]], left_out: set[str]
) -> Iterator[str]:
    """The names of all that these dependencies need, whatever the machine."""
    waiting, seen = [each["name"] for each in direct], set(left_out)
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        yield name
        for package in by_name[name]:
            optional = package.get("optional-dependencies", {}).values()
            more = [*package.get("dependencies", ()), *(each for group in optional for each in group)]
            waiting += [each["name"] for each in more]


def _kind(package: Mapping[str, Any]) -> str:
    """The first key of its source."""
    return next(iter(package["source"]))


def _problem(package: Mapping[str, Any]) -> str:
    """Why a node cannot install this package; "" if it can."""
    kind, where = next(iter(package["source"].items()))
    is_everywhere = kind == "registry" and str(where).startswith(("https://", "http://", "file:///", "/"))
    if not is_everywhere and kind not in ("git", "url"):
        return f"{package['name']} comes from {where} of this machine; send code as the workdir"
    line = _index(package) or _pinned(package, is_one_of_several=False)
    return f"{package['name']}: {problem}" if (problem := line_problem(line)) else ""


def _index(package: Mapping[str, Any]) -> str:
    """The option of an installer that finds the package; "" where it looks anyway."""
    registry = package["source"].get("registry", _DEFAULT_INDEX)
    if registry == _DEFAULT_INDEX:
        return ""
    is_folder = registry.startswith(("/", "file:///"))
    return f"--find-links {registry}" if is_folder else f"--extra-index-url {registry}"


def _requirement(dependency: Mapping[str, Any], by_name: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    extras = f"[{','.join(dependency['extra'])}]" if dependency.get("extra") else ""
    marker = f" ; {dependency['marker']}" if dependency.get("marker") else ""
    url = _url(by_name[dependency["name"]][0])
    return f"{dependency['name']}{extras}{f' @ {url}' if url else ''}{marker}"


def _pinned(package: Mapping[str, Any], *, is_one_of_several: bool) -> str:
    """The exact package; of several of one name, with the machines that it is for."""
    url = _url(package)
    exact = f"{package['name']} @ {url}" if url else f"{package['name']}=={package['version']}"
    markers = package.get("resolution-markers", ()) if is_one_of_several else ()
    return f"{exact} ; {' or '.join(f'({marker})' for marker in markers)}" if markers else exact


def _url(package: Mapping[str, Any]) -> str:
    """Where a package comes from that is in no index; "" of one that is."""
    source = package["source"]
    if git := source.get("git"):
        repository, _, commit = git.partition("#")
        address, _, query = repository.partition("?")
        folder = re.search(r"subdirectory=([^&]+)", query)
        return f"git+{address}@{commit}{f'#subdirectory={folder[1]}' if folder else ''}"
    return source.get("url", "")


def _export(file: Path) -> str:
    return f"`uv export --no-hashes --no-emit-project > {file.with_name('requirements.txt')}`"


def _parsed(file: Path) -> Mapping[str, Any]:
    try:
        return parsed_toml(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidJob(f"environment: {file} cannot be read: {error}") from None
    except ValueError as error:
        raise InvalidJob(f"environment: {file} is no TOML: {error}") from None
