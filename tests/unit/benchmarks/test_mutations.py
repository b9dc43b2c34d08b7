"""The list of mutations fits the source as it is, and a run tells which of them the tests catch."""

import ast
import re
from pathlib import Path

import pytest
import typer

from benchmarks.mutations.__main__ import (
    ROOT,
    Copy,
    DoesNotApply,
    FailsUnmutated,
    Trial,
    as_json,
    files_of,
    main,
    mutated,
    page,
)
from benchmarks.mutations.mutation_list import MUTATIONS, Mutation

FILES = {
    "sums.py": "def total(numbers):\n    return sum(numbers) + 0\n\n\ndef unused():\n    return 1\n",
    "test_sums.py": "from sums import total\n\n\ndef test_a_total_is_the_sum():\n    assert total([1, 2]) == 3\n",
    "test_others.py": "def test_that_fails():\n    raise AssertionError\n",
}


def mutation(old: str, new: str, *tests: str) -> Mutation:
    return Mutation(name="m", file="sums.py", old=old, new=new, tests=tests or ("test_sums.py",), loses="a sum")


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """Of a project with one module, and a test of one of its two functions."""
    root = tmp_path / "project"
    root.mkdir()
    for name, text in FILES.items():
        (root / name).write_text(text)
    return Copy(root, FILES, tmp_path / "copy")


@pytest.mark.parametrize("each", MUTATIONS, ids=lambda each: each.name)
def test_a_mutation_applies_to_the_source_and_names_tests_that_exist(each: Mutation) -> None:
    source = (ROOT / each.file).read_text()
    changed = ast.parse(mutated(source, each))
    assert ast.dump(changed) != ast.dump(ast.parse(source)), "a comment is no mutation"
    for test in each.tests:
        file, _, name = test.partition("::")
        assert re.search(rf"^(async )?def {name or 'test_'}", (ROOT / file).read_text(), re.MULTILINE), test
        assert file.startswith(("tests/unit/", "tests/properties/", "tests/simulation/")), "it must be fast"


def test_each_mutation_has_a_name_of_its_own() -> None:
    assert len({each.name for each in MUTATIONS}) == len(MUTATIONS) >= 39


def test_a_name_chooses_one_mutation_and_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    main(only=[MUTATIONS[0].name], listing=True)
    assert capsys.readouterr().out == f"{MUTATIONS[0].name}: {MUTATIONS[0].loses}\n"
    with pytest.raises(typer.BadParameter, match="no mutation is called nope"):
        main(only=["nope"])


@pytest.mark.parametrize(("old", "count"), [("return", 2), ("multiply", 0)])
def test_a_text_that_is_not_there_exactly_once_does_not_apply(old: str, count: int) -> None:
    with pytest.raises(DoesNotApply, match=f"{count} times in sums.py"):
        mutated(FILES["sums.py"], mutation(old, "pass"))


def test_a_copy_has_the_files_that_git_knows_and_no_other() -> None:
    files = files_of(ROOT)
    assert {"benchmarks/mutations/mutation_list.py", "elasticflow/shared", "pyproject.toml"} <= set(files)
    assert not [name for name in files if "__pycache__" in name or name.startswith(".git/")]


def test_trials_tell_what_is_caught_and_leave_the_copy_as_it_was(copy: Copy, tmp_path: Path) -> None:
    caught = mutation("+ 0", "+ 1")
    copy.check([caught])
    for _ in range(2):  # also where the compiled module of the trial before has the same size and time
        first, second = copy.trial(caught), copy.trial(mutation("return 1", "return 2"))
        assert (first.caught_by, first.problem) == ("test_sums.py::test_a_total_is_the_sum", "")
        assert (second.caught_by, second.problem) == ("", "survives")
        assert first.cpu_s > 0.0
    assert "times in sums.py" in copy.trial(mutation("multiply", "")).problem
    assert "its tests cannot run" in copy.trial(mutation("def total", "def other")).problem
    assert (tmp_path / "copy/sums.py").read_text() == FILES["sums.py"]


def test_tests_that_fail_without_a_mutation_catch_nothing(copy: Copy) -> None:
    with pytest.raises(FailsUnmutated, match=r"test_others\.py::test_that_fails"):
        copy.check([mutation("+ 0", "+ 1", "test_sums.py", "test_others.py")])


def test_a_page_names_the_commit_and_each_outcome() -> None:
    trials = [
        Trial(mutation=mutation("+ 0", "+ 1"), caught_by="tests/unit/test_sums.py::test_a[x|y]", cpu_s=1.24),
        Trial(mutation=mutation("return 1", "return 2"), problem="survives", cpu_s=2.0),
    ]
    text = page(trials, "commit abc; 2 cores")
    assert "commit abc; 2 cores" in text
    assert "**1 of 2 mutations are caught**, in 3 seconds" in text
    assert text.splitlines()[-2:] == [
        r"| m | `sums.py` | a sum | `test_sums.py::test_a[x\|y]` | 1.2 |",
        "| m | `sums.py` | a sum | **survives** | 2.0 |",
    ]
    assert [each["problem"] for each in as_json(trials, "")["mutations"]] == ["", "survives"]
