"""Each page of results says at which commit it was measured, and which folders it measures."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.regressions import pages
from benchmarks.regressions.pages import (
    EXAMPLE,
    HISTORY,
    BadPage,
    Change,
    Measurement,
    measurements,
    num_changed_lines,
)

MEASUREMENT = Measurement(
    page="page.md",
    part="speed",
    date="2026-11-22",
    commit="2468f4f",
    folders=("services/admission", "shared/scheduling"),
)


def written(folder: Path, *lines: str) -> Path:
    page = folder / "page.md"
    page.write_text("\n".join(("# A page", "", *lines, "", "Text.", "")))
    return page


@pytest.mark.parametrize("page", pages.result_pages(), ids=lambda page: page.name)
def test_each_page_names_commits_and_folders_that_exist(page: Path) -> None:
    missing = [folder for each in measurements(page) for folder in each.folders if not (pages.ROOT / folder).is_dir()]
    assert missing == []


def test_a_page_has_a_line_for_each_of_its_measurements(tmp_path: Path) -> None:
    whole = "- Measured on 2026-11-28 at `cb1556e4cb1556e4`: `shared/state`."
    first, second = measurements(written(tmp_path, EXAMPLE, whole))
    assert first == MEASUREMENT
    assert (second.part, second.commit, second.folders) == ("", "cb1556e4cb1556e4", ("shared/state",))


def test_what_a_decision_was_taken_on_is_never_old(tmp_path: Path) -> None:
    assert measurements(written(tmp_path, EXAMPLE, HISTORY)) == [MEASUREMENT]
    assert measurements(written(tmp_path, HISTORY)) == []


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("Text only.",),
        (EXAMPLE, "- Measured some day."),
        (EXAMPLE.replace("2468f4f", "HEAD"),),
        (EXAMPLE.replace("2026-11-22", "today"),),
        (EXAMPLE.replace("`services/admission`", "services/admission"),),
        (EXAMPLE.replace("Measured", "Recorded"),),
        (HISTORY.replace("Recorded", "Measured"),),
        (HISTORY.replace("8edf0ebe", "HEAD"),),
    ],
)
def test_a_page_without_such_lines_is_refused(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with pytest.raises(BadPage, match=r"page\.md: below its title"):
        measurements(written(tmp_path, *lines))


def test_changed_lines_are_counted_and_binary_files_are_not() -> None:
    assert num_changed_lines("12\t3\tshared/state/pool.py\n-\t-\tsimulator/data/picture.png\n0\t5\told.py\n") == 20
    assert num_changed_lines("") == 0


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With one page of results, of a folder that has one file."""
    root = tmp_path / "repository"
    (root / "shared/state").mkdir(parents=True)
    (root / "results").mkdir()
    (root / "shared/state/pool.py").write_text("one\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "--quiet", "--message=first")
    monkeypatch.setattr(pages, "ROOT", root)
    monkeypatch.setattr(pages, "RESULTS", root / "results")
    return root


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def line(commit: str) -> str:
    return f"- Measured on 2026-11-28 at `{commit}`: `shared/state`."


def test_a_page_is_listed_once_its_folders_have_changed(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    written(repository / "results", line(commit))
    assert pages.all_changes() == []
    assert pages.current_commit() == commit[:8]
    (repository / "shared/state/pool.py").write_text("other\ntwo\n")
    (change,) = pages.all_changes() or []
    assert (change.measurement.commit, change.num_lines) == (commit, 3)
    assert pages.current_commit() == f"{commit[:8]}-dirty"


def test_a_commit_that_this_checkout_does_not_have_is_listed_as_unknown(repository: Path) -> None:
    written(repository / "results", line("0123456789ab"))
    (change,) = pages.all_changes() or []
    assert change.num_lines is None


def test_without_a_history_no_page_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    assert pages.all_changes() is None
    assert pages.current_commit() == "unknown"


def test_a_change_is_one_flat_object() -> None:
    shown = Change(MEASUREMENT, 7).as_json()
    assert (shown["page"], shown["changed_lines"]) == ("page.md", 7)
