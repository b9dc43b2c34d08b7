"""Tries mutations on a copy of the tree: the tests pass on the copy, and fail once it is mutated.

The copy has the files of the working tree that git knows or does not ignore; the checkout itself stays as it is. The
scheduler's loops run interpreted, because each mutation of them would have to be compiled again. Their numbers are then
of numpy's types, so a test that writes them into the ledger of a real host fails.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

from benchmarks.mutations.mutation_list import Mutation
from benchmarks.timing import children_cpu_s

TIMEOUT_S = 120  # of one test: a mutated loop may never end, and the machine may be busy
_OPTIONS = (
    "-x",
    "-q",
    "-rf",
    "--tb=no",
    "--no-header",
    "--rootdir=.",
    "-p",
    "no:cacheprovider",
    f"--timeout={TIMEOUT_S}",
)
_FAILED = "FAILED "


class DoesNotApply(ValueError):
    """The source has changed: the old text of a mutation is not there exactly once."""


class FailsUnmutated(RuntimeError):
    """Tests fail without a mutation, so that they can catch none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """failed: the first test that failed; "" if none did. cpu_s: seconds of processors."""

    is_complete: bool
    failed: str
    cpu_s: float
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """caught_by: the first test that failed. problem: why none did; "" if the mutation was caught."""

    mutation: Mutation
    caught_by: str = ""
    cpu_s: float = 0.0
    problem: str = ""


def mutated(source: str, mutation: Mutation) -> str:
    """The source with the mutation. Raises DoesNotApply."""
    if (count := source.count(mutation.old)) != 1:
        raise DoesNotApply(
            f"its text is {count} times in {mutation.file}: change the mutation as the source has changed"
        )
    return source.replace(mutation.old, mutation.new)


def files_of(root: Path) -> list[str]:
    """The files of a working tree that git knows or does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return [name for name in listed.stdout.split("\0") if name and os.path.lexists(root / name)]


class Copy:
    """A copy of a project, mutated for one trial after another."""

    def __init__(self, root: Path, files: Iterable[str], folder: Path) -> None:
        self._folder = folder
        for name in files:
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target, follow_symlinks=False)

    def check(self, mutations: Iterable[Mutation]) -> None:
        """Raises FailsUnmutated unless their tests pass before any mutation."""
        tests = dict.fromkeys(test for mutation in mutations for test in mutation.tests)
        run = self._tests(tuple(tests))
        if not run.is_complete or run.failed:
            raise FailsUnmutated(f"without a mutation {run.failed or 'not all tests can run'}:\n{run.said}")

    def trial(self, mutation: Mutation) -> Trial:
        """Mutate the copy, run the tests, and restore it."""
        file = self._folder / mutation.file
        source = file.read_text()
        try:
            _write(file, mutated(source, mutation))
            run = self._tests(mutation.tests)
        except DoesNotApply as error:
            return Trial(mutation=mutation, problem=str(error))
        finally:
            _write(file, source)
        problem = "" if run.failed else "survives" if run.is_complete else f"its tests cannot run:\n{run.said}"
        return Trial(mutation=mutation, caught_by=run.failed, cpu_s=run.cpu_s, problem=problem)

    def _tests(self, tests: Sequence[str]) -> _Run:
        environment = {**os.environ, "PYTHONPATH": str(self._folder), "NUMBA_DISABLE_JIT": "1"}
        began_s = children_cpu_s()
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *_OPTIONS, *tests],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        failed = [line.removeprefix(_FAILED) for line in ran.stdout.splitlines() if line.startswith(_FAILED)]
        return _Run(
            is_complete=ran.returncode in (0, 1),
            failed=failed[0].split(" - ")[0] if failed else "",
            cpu_s=children_cpu_s() - began_s,
            said=ran.stdout,
        )


def _write(file: Path, source: str) -> None:
    """Write the source and delete its compiled module, which Python compares with it only by seconds and size."""
    Path(cache_from_source(str(file))).unlink(missing_ok=True)
    file.write_text(source)
