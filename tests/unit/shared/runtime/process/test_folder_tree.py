"""Folders that users' code has made are deleted and counted, however deep, wide or hostile they are."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticflow.shared.runtime.process.folder_tree import bytes_and_entries_in, delete_folder, walk
from tests.support.deep_folders import DEEP, make_deep

pytestmark = pytest.mark.usefixtures("deleted_however_deep")

UNPRIVILEGED_USER = 65_534


@pytest.fixture
def few_open_files() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, limits[1]), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_folder_of_any_depth_is_counted_and_deleted(tmp_path: Path, few_open_files: None) -> None:
    make_deep(tmp_path / "deep")
    assert bytes_and_entries_in(tmp_path / "deep", up_to_entries=10 * DEEP)[1] == DEEP + 2, "and itself, and the file"
    assert delete_folder(tmp_path / "deep")
    assert list(tmp_path.iterdir()) == []


def test_links_lead_to_nothing_outside(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("kept")
    folder = tmp_path / "folder"
    (folder / "a").mkdir(parents=True)
    for link in (folder / "link", folder / "a" / "link"):
        link.symlink_to(victim)
    os.mkfifo(folder / "a" / "fifo")
    (folder / "a" / "\udcff\n").touch()
    assert sorted(entry.name for entry in walk(folder)) == ["", "a", "fifo", "link", "link", "\udcff\n"]
    assert delete_folder(folder)
    (tmp_path / "as a folder").symlink_to(victim)
    assert delete_folder(tmp_path / "as a folder"), "the link itself"
    assert (victim / "file").read_text() == "kept"


def test_planted_names_of_raised_folders_are_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for name in (".raised-1", ".raised-2/below/deeper", "other/.raised-1/below"):
        (folder / name).mkdir(parents=True)
    (folder / ".raised-3").touch()
    assert delete_folder(folder)


def test_an_interrupted_deletion_goes_on(tmp_path: Path) -> None:
    make_deep(tmp_path / "deep", 50)
    permitted = iter(range(20))
    assert not delete_folder(tmp_path / "deep", goes_on=lambda: next(permitted, None) is not None)
    assert delete_folder(tmp_path / "deep")


def test_what_is_absent_is_gone(tmp_path: Path) -> None:
    assert delete_folder(tmp_path / "absent")


def test_counting_ends_at_the_bound(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).touch()
    assert bytes_and_entries_in(tmp_path, up_to_entries=5)[1] == 5


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user, and modes do not stop root")
@pytest.mark.parametrize("mode", [0o000, 0o500, 0o400])
def test_a_user_deletes_its_own_folders_whatever_their_modes(tmp_path: Path, mode: int) -> None:
    top = tmp_path / "top"
    (top / "a" / "b" / "c").mkdir(parents=True)
    (top / "a" / "b" / "file").touch()
    for path in (top / "a" / "b" / "c", top / "a" / "b", top / "a", top):
        os.chown(path, UNPRIVILEGED_USER, UNPRIVILEGED_USER)
        path.chmod(mode)
    above = os.open(tmp_path, os.O_RDONLY)
    tmp_path.chmod(0o777)
    child = os.fork()
    if child == 0:
        os.fchdir(above)  # the folders above are closed to it
        os.setresuid(UNPRIVILEGED_USER, UNPRIVILEGED_USER, UNPRIVILEGED_USER)
        os._exit(not delete_folder(Path("top")))
    os.close(above)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(tmp_path.iterdir()) == []
