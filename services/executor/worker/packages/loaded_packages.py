"""The packages that a worker has loaded before its job is known: no job can have another version of them."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions, packages_distributions
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

Versions = Mapping[str, str]  # by canonical name


def loaded_packages(modules: Iterable[str] = sys.modules) -> Versions:
    """Of the distributions of these modules, and of all that they require: torch, numpy, ..."""
    owners = packages_distributions()
    left = [owner for module in tuple(modules) for owner in owners.get(module, ())]
    versions: dict[str, str] = {}
    while left:
        name = canonicalize_name(left.pop())
        try:
            found = versions.get(name) or distribution(name)
        except PackageNotFoundError:  # on this platform it is not needed
            continue
        if isinstance(found, Distribution):
            versions[name] = found.version
            left += [requirement.name for requirement in _required_by(found)]
    return versions


def refused_lines(lines: Iterable[str], loaded: Versions) -> list[str]:
    """A sentence for each requirement that asks for another version of a loaded package."""
    return [
        f"{line}: workers have loaded {requirement.name} {loaded[canonicalize_name(requirement.name)]}"
        for line in lines
        if (requirement := _parsed(line)) is not None and _is_violated(requirement, loaded)
    ]


def violated_in(folder: Path, loaded: Versions) -> list[str]:
    """A sentence for each package in this folder that needs another version of a loaded package, or is one."""
    found: list[str] = []
    for package in distributions(path=[str(folder)]):
        if canonicalize_name(package.name) in loaded:
            found.append(f"{package.name} {package.version} would replace the one that workers have loaded")
        found += [
            f"{package.name} {package.version} needs {requirement}, and workers have loaded "
            f"{loaded[canonicalize_name(requirement.name)]}"
            for requirement in _required_by(package)
            if _is_violated(requirement, loaded)
        ]
    return found


def _required_by(package: Distribution) -> Iterator[Requirement]:
    for line in package.requires or ():
        requirement = _parsed(line)
        if requirement is not None and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            yield requirement


def _parsed(line: str) -> Requirement | None:
    """None for an option of pip."""
    try:
        return Requirement(line.partition(" --")[0])
    except InvalidRequirement:
        return None


def _is_violated(requirement: Requirement, loaded: Versions) -> bool:
    version = loaded.get(canonicalize_name(requirement.name))
    if version is None or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
        return False
    return requirement.url is not None or not requirement.specifier.contains(version, prereleases=True)
