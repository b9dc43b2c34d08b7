"""The file that describes a job's own environment: a lock of uv, requirements in the form of pip, or a pyproject.toml.

What is read from it travels in the job's specification, so what means this machine only is refused.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from elasticflow.errors import InvalidJob
from elasticflow.sdk.requirements import line_problem, read_requirements
from elasticflow.shared.messages.limits import PYTHON_PATTERN
from elasticflow.shared.messages.syntax_problems import parsed_toml

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
