"""One combination tried: a virtual environment of its own, an installation from wheels alone, and the tests."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.versions.checks import tests
from tests.versions.matrix import (
    CONSTRAINTS,
    EXTRAS,
    ROOT,
    Combination,
    Versions,
    constrained_versions,
    dependencies,
    lowest_version,
    requirements,
    tools,
)

WHEELS_ALONE = ("--only-binary", ":all:")
WITHOUT_WHEELS = ("--no-binary", "nkeys")  # pure Python, an archive of sources alone
NUM_STORMS = 3
LAST_LINES = 30  # of what failed


class Outcome(StrEnum):
    """not_available: the index does not hold it. wheels_exist: no interpreter is there to run them."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_AVAILABLE = "not available"
    WHEELS_EXIST = "wheels exist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """reason: of an outcome that is not `passed`. versions: by name, of the direct dependencies."""

    name: str
    python: str
    outcome: Outcome
    date: str
    reason: str = ""
    num_tests: int = 0
    versions: dict[str, str] = field(default_factory=dict[str, str])

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class NotAvailable(Exception):
    """The index has no such version."""


class Failed(Exception):
    """A command ended with an error: its last lines."""


def try_out(combination: Combination) -> Trial:
    """Leaves nothing behind. Prints what it does."""
    with tempfile.TemporaryDirectory(prefix="ef-versions-") as folder:
        attempt = _Attempt(combination, Path(folder))
        try:
            if combination.interpreter is None:
                return attempt.end(Outcome.WHEELS_EXIST, versions=attempt.resolve_wheels())
            attempt.install()
            return attempt.end(Outcome.PASSED, num_tests=attempt.test(), versions=attempt.versions())
        except NotAvailable as error:
            return attempt.end(Outcome.NOT_AVAILABLE, reason=str(error))
        except Failed as error:
            return attempt.end(Outcome.FAILED, reason=str(error))


class _Attempt:
    def __init__(self, combination: Combination, folder: Path) -> None:
        self.combination = combination
        self.folder = folder
        self.python = Path(sys.executable) if combination.interpreter is None else folder / "venv/bin/python"
        self.full_version = combination.python

    def install(self) -> None:
        assert self.combination.interpreter is not None
        self._run(self.combination.interpreter, "-m", "venv", self.folder / "venv")
        self.full_version = self._run(self.python, "-c", "import platform; print(platform.python_version())").strip()
        extras = f"{ROOT}[{','.join(EXTRAS)}]"
        self._pip(
            "install", "--progress-bar", "off", *WHEELS_ALONE, *WITHOUT_WHEELS, "--editable", extras, *map(str, tools())
        )

    def test(self) -> int:
        """The number of tests, none of which may be skipped: each stands for a dependency."""
        report = self.folder / "tests.xml"
        # Old libraries use what the newest ones below them deprecate: their users are not asked to mind.
        warnings = ("-W", "default") if self.combination.versions == Versions.LOWEST else ()
        run = (
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "not gpu",
            *warnings,
            f"--junit-xml={report}",
            *tests(),
        )
        kept = {"NUMBA_CACHE_DIR": str(self.folder / "compiled"), "EF_SIMULATED_SEEDS": str(NUM_STORMS)}
        self._run(self.python, *run, environment=kept)
        counts = ElementTree.parse(report).getroot()[0].attrib
        if skipped := int(counts["skipped"]):
            names = [case.get("name") for case in ElementTree.parse(report).iter("testcase") if len(case)]
            raise Failed(f"{skipped} tests were skipped: {', '.join(map(str, names))}")
        return int(counts["tests"])

    def versions(self) -> dict[str, str]:
        listed = json.loads(self._run(self.python, "-m", "pip", "list", "--format", "json"))
        return _direct({canonicalize_name(each["name"]): each["version"] for each in listed})

    def resolve_wheels(self) -> dict[str, str]:
        """For a Python that is not here. pip reads markers as this Python does; those of the project are read here."""
        target = {"python_version": self.combination.python, "python_full_version": f"{self.combination.python}.0"}
        wanted = [each for those in requirements().values() for each in those]
        wanted = [each for each in wanted if each.marker is None or each.marker.evaluate(target)]
        lines = [f"{each.name}{each.specifier}" for each in wanted]  # without [nkeys]
        report = self.folder / "report.json"
        where = ("--target", self.folder / "there", "--python-version", self.combination.python)
        self._pip("install", "--progress-bar", "off", "--dry-run", "--report", report, *where, *WHEELS_ALONE, *lines)
        resolved = [each["metadata"] for each in json.loads(report.read_text())["install"]]
        return _direct({canonicalize_name(each["name"]): each["version"] for each in resolved})

    def end(self, outcome: Outcome, **more: Any) -> Trial:
        date = time.strftime("%Y-%m-%d", time.gmtime())
        return Trial(name=self.combination.name, python=self.full_version, outcome=outcome, date=date, **more)

    def _constraints(self) -> str:
        """Lines for pip. Where no other torch is wanted, it is that of constraints.txt: others bring several GB."""
        constrained = constrained_versions()
        if self.combination.torch:
            # Of direct dependencies alone: another torch needs other versions of what it is built on.
            direct = {name: version for name, version in constrained.items() if name in _specifiers()}
            return _lines(direct | {"torch": f"{self.combination.torch}.*"})
        match self.combination.versions:
            case Versions.LOWEST:
                floors = {name: lowest_version(specifier) for name, specifier in _specifiers().items()}
                return _lines(floors | {"torch": constrained["torch"]})
            case Versions.NEWEST:
                return _lines({"torch": constrained["torch"]})
            case _:
                return CONSTRAINTS.read_text()

    def _pip(self, *arguments: str | Path) -> None:
        """The constraints replace those of the machine's own configuration."""
        constraints = self.folder / "constraints.txt"
        constraints.write_text("" if self.combination.interpreter is None else self._constraints())
        try:
            self._run(self.python, "-m", "pip", *arguments, environment={"PIP_CONSTRAINT": str(constraints)})
        except Failed as error:
            if self.combination.torch and "No matching distribution found for torch" in str(error):
                raise NotAvailable(f"the index has no torch {self.combination.torch} for this Python") from None
            raise

    def _run(self, *command: str | Path, environment: Mapping[str, str] = MappingProxyType({})) -> str:
        print("$", *(str(word).replace(str(self.folder), "TMP") for word in command), flush=True)
        ran = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": "", **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            said = [line for line in (ran.stdout + ran.stderr).splitlines() if not line.startswith("WARNING: ")]
            raise Failed("\n".join(said[-LAST_LINES:]))
        return ran.stdout


def _specifiers() -> dict[str, SpecifierSet]:
    """By normalized name, of all that is installed directly."""
    of_tools = {canonicalize_name(each.name): each.specifier for each in tools()}
    return of_tools | {each.name: each.specifier for each in dependencies().values()}


def _lines(versions: Mapping[str, str]) -> str:
    return "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


def _direct(installed: Mapping[str, str]) -> dict[str, str]:
    return {name: version for name, version in sorted(installed.items()) if name in dependencies()}
