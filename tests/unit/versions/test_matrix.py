"""The matrix of versions follows from pyproject.toml, tests each dependency, and the page shows what was recorded."""

from pathlib import Path

from packaging.version import Version

from tests.versions import checks, page
from tests.versions.matrix import (
    ROOT,
    Versions,
    combinations,
    constrained_versions,
    dependencies,
    interpreters,
    lowest_version,
    project,
    torch_bounds,
)
from tests.versions.trial import Outcome, Trial

OURS = Path("python3.11")
EXTRAS_OF_DEVELOPERS = {"docs", "page", "helm", "dev"}


def trial(name: str, version: str, outcome: Outcome = Outcome.PASSED) -> Trial:
    return Trial(name=name, python="3.11.7", outcome=outcome, date="2026-01-01", versions={"torch": version})


def test_each_python_with_an_interpreter_runs_the_tests_and_the_others_have_wheels() -> None:
    tried = {each.name: each for each in combinations({"3.11": OURS, "3.15": Path("python3.15")}, "3.11")}
    assert [name for name in tried if name.startswith("python")] == [f"python-3.{n}" for n in range(11, 16)]
    with_tests = {name for name, each in tried.items() if each.versions == Versions.CONSTRAINTS}
    assert with_tests == {"python-3.11", "python-3.15", *(f"torch-{torch}" for torch in torch_bounds())}
    assert {each.interpreter for each in tried.values() if each.versions == Versions.WHEELS} == {None}
    assert {"lowest", "newest"} <= set(tried)


def test_the_interpreter_of_this_environment_is_found() -> None:
    assert interpreters()


def test_the_bounds_of_torch_are_those_of_the_project() -> None:
    lowest, newest = torch_bounds()
    admitted = dependencies()["torch"].specifier
    assert admitted.contains(f"{lowest}.0")
    assert admitted.contains(f"{newest}.1")
    assert not admitted.contains(f"2.{int(newest.partition('.')[2]) + 1}.0")
    assert lowest_version(admitted) == lowest


def test_each_dependency_of_a_user_is_tried_and_has_a_test() -> None:
    of_extras = project()["optional-dependencies"]
    tried = {extra for each in dependencies().values() for extra in each.needed_by}
    assert tried == {"", *of_extras} - EXTRAS_OF_DEVELOPERS
    assert set(checks.CHECKS) == set(dependencies())
    assert [test for test in checks.tests() if not (ROOT / test.partition("::")[0]).exists()] == []


def test_the_constraints_are_within_the_bounds_of_the_project() -> None:
    constrained = constrained_versions()
    assert [each.name for each in dependencies().values() if constrained[each.name] not in each.specifier] == []


def test_lowest_and_newest_are_of_combinations_that_passed() -> None:
    trials = [trial("a", "2.9"), trial("b", "2.13"), trial("c", "2.15", Outcome.FAILED)]
    assert page.passed_versions("torch", trials) == [Version("2.9"), Version("2.13")]
    assert "| torch | `train`, `safetensors` | `<2.16,>=2.11` | 2.9 | 2.13 |" in page.page(trials)


def test_the_page_shows_what_was_recorded() -> None:
    assert page.PAGE.read_text() == page.page(page.recorded()), page.__doc__
