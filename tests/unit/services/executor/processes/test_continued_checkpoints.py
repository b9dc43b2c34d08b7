"""Checkpoints of an ended job that another one begins from."""

import os
from pathlib import Path

import pytest

from elasticflow.services.executor.processes import prepared_folders
from elasticflow.services.executor.processes.prepared_folders import (
    CannotPrepare,
    bring_checkpoints,
    bring_promised_checkpoints,
    take_folders,
)
from elasticflow.services.executor.worker.checkpoint import files, store
from elasticflow.shared.messages.job_spec import ContinuedJob

FIRST, SECOND = "1" * 16, "2" * 16
DIGEST = "a" * 64


def name_of(iteration: int, *, generation: int = 3, part: int | None = None) -> str:
    of_part = "" if part is None else f"-p{part:05d}"
    return f"g{generation:010d}-i{iteration:014d}{of_part}-{DIGEST}.{'ckpt' if part is None else 'part'}"


def from_han(iteration: int, *, is_exact: bool = False) -> ContinuedJob:
    return ContinuedJob(job_id="han", identity=FIRST, iteration=iteration, is_exact=is_exact)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """With two checkpoints of han, the newer one in parts."""
    take_folders(tmp_path, "han", FIRST)
    folder = tmp_path / "checkpoints" / "han"
    folder.mkdir(parents=True)
    for name in (name_of(20), name_of(40), name_of(40, part=0), name_of(40, part=1), "model.pt", "g1.unfinished"):
        (folder / name).write_text(name)
    return tmp_path


def brought(data_dir: Path, job_id: str) -> set[str]:
    return {file.name for file in (data_dir / "checkpoints" / job_id).iterdir()}


def test_the_newest_checkpoints_are_linked_with_their_parts(data_dir: Path) -> None:
    take_folders(data_dir, "leia", SECOND)
    bring_checkpoints(data_dir, "leia", from_han(40))
    assert brought(data_dir, "leia") == {name_of(20), name_of(40), name_of(40, part=0), name_of(40, part=1)}
    here, there = (data_dir / "checkpoints" / job_id / name_of(40) for job_id in ("leia", "han"))
    assert os.path.samefile(here, there)
    there.unlink()
    assert here.read_text() == name_of(40), "its folder may be deleted"


def test_very_many_checkpoints_of_a_job_are_not_linked_while_other_jobs_wait(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors that share the folder take turns, and a worker can write as many as the disk has room for."""
    monkeypatch.setattr(prepared_folders, "_MAX_FILES", 8)
    for iteration in range(50, 60):
        (data_dir / "checkpoints" / "han" / name_of(iteration)).touch()
    with pytest.raises(CannotPrepare, match="han has more than 8 files that are named as checkpoints"):
        bring_checkpoints(data_dir, "leia", from_han(40))
    assert not (data_dir / "checkpoints" / "leia").exists()


def test_a_named_iteration_alone_is_taken(data_dir: Path) -> None:
    bring_checkpoints(data_dir, "leia", from_han(20, is_exact=True))
    assert brought(data_dir, "leia") == {name_of(20)}


def test_what_the_job_has_written_itself_stays_alone(data_dir: Path) -> None:
    bring_checkpoints(data_dir, "leia", from_han(40))
    own = data_dir / "checkpoints" / "leia"
    for file in own.iterdir():
        file.unlink()
    (own / name_of(50, generation=4)).write_text("own")
    bring_checkpoints(data_dir, "leia", from_han(40))
    assert brought(data_dir, "leia") == {name_of(50, generation=4)}


def test_a_job_that_takes_the_name_continues_from_the_folder_that_was_moved_aside(data_dir: Path) -> None:
    take_folders(data_dir, "han", SECOND)
    bring_checkpoints(data_dir, "han", from_han(40))
    assert name_of(40) in brought(data_dir, "han")


def test_the_folder_of_a_later_job_of_the_name_is_not_taken_for_it(data_dir: Path) -> None:
    take_folders(data_dir, "han", SECOND)
    later = data_dir / "checkpoints" / "han"
    later.mkdir()
    (later / name_of(60)).write_text("of the later one")
    bring_checkpoints(data_dir, "leia", from_han(40))
    assert name_of(60) not in brought(data_dir, "leia")
    assert name_of(40) in brought(data_dir, "leia")


def test_what_is_missing_is_named_with_what_is_there(data_dir: Path) -> None:
    with pytest.raises(CannotPrepare) as wrong:
        bring_checkpoints(data_dir, "leia", from_han(30, is_exact=True))
    assert str(wrong.value) == (
        "no checkpoint of iteration 30 of han is on this node: take --from han@20 or --from han@40"
    )
    with pytest.raises(CannotPrepare, match="no checkpoint of iteration 4 of luke is on this node"):
        bring_checkpoints(data_dir, "leia", ContinuedJob(job_id="luke", identity=FIRST, iteration=4))
    assert not (data_dir / "checkpoints" / "leia").exists()


class LateStorage:
    """Shows files as a client of NFS does: a look at the folder shows no newer iteration than the given one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *shown: int) -> None:
        """shown: the newest iteration of each look; later looks show all."""
        self.num_looks, self._shown, self._listed = 0, shown, prepared_folders.checkpoints_in
        monkeypatch.setattr(prepared_folders, "checkpoints_in", self._checkpoints_in)
        monkeypatch.setattr(prepared_folders, "_LOOK_AGAIN_S", 0.0)

    def _checkpoints_in(self, folder: Path) -> list[tuple[Path, int]]:
        newest = 1 << 60
        if folder.name == "han":
            newest = self._shown[self.num_looks] if self.num_looks < len(self._shown) else newest
            self.num_looks += 1
        return [(file, iteration) for file, iteration in self._listed(folder) if iteration <= newest]


@pytest.mark.parametrize("is_exact", [True, False])
async def test_a_promised_checkpoint_that_is_shown_late_is_awaited(
    data_dir: Path, is_exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LateStorage(monkeypatch, 0, 20, 20)
    await bring_promised_checkpoints(data_dir, "leia", from_han(40, is_exact=is_exact), wait_s=1e9)
    assert storage.num_looks == 4
    assert {name_of(40), name_of(40, part=0), name_of(40, part=1)} <= brought(data_dir, "leia")


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        (20, "only 20: set EF_DATA_DIR to the same shared storage on all nodes of the pool, or take --from han@20"),
        (0, "nor another one of that job: set EF_DATA_DIR to the same shared storage on all nodes of the pool"),
    ],
)
async def test_a_promised_checkpoint_that_does_not_appear_is_named_with_what_was_found(
    data_dir: Path, shown: int, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    LateStorage(monkeypatch, *[shown] * 1000)
    with pytest.raises(CannotPrepare) as wrong:
        await bring_promised_checkpoints(data_dir, "leia", from_han(40), wait_s=0.01)
    expected = f"no checkpoint of iteration 40 of han has appeared on this node within 0 s, {found}"
    assert str(wrong.value) == expected
    assert not (data_dir / "checkpoints" / "leia").exists(), "nothing older is there to begin from"


async def test_links_to_older_ones_alone_are_not_enough(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor died before it had linked the newest, and the storage shows none of the other job's files yet."""
    own = data_dir / "checkpoints" / "leia"
    own.mkdir()
    os.link(data_dir / "checkpoints" / "han" / name_of(20), own / name_of(20))
    LateStorage(monkeypatch, 0)
    await bring_promised_checkpoints(data_dir, "leia", from_han(40), wait_s=1e9)
    assert name_of(40) in brought(data_dir, "leia")


async def test_a_named_checkpoint_that_was_replaced_by_newer_ones_is_not_awaited(data_dir: Path) -> None:
    with pytest.raises(CannotPrepare, match="iteration 30 of han is on this node: take --from han@20 or --from han@40"):
        await bring_promised_checkpoints(data_dir, "leia", from_han(30, is_exact=True), wait_s=1e9)


def test_an_older_checkpoint_than_the_ledger_knows_is_none_to_begin_from(data_dir: Path) -> None:
    with pytest.raises(CannotPrepare, match="no checkpoint of iteration 50 of han is on this node"):
        bring_checkpoints(data_dir, "leia", from_han(50))
    assert not (data_dir / "checkpoints" / "leia").exists()


def test_a_newer_checkpoint_than_the_ledger_knew_counts(data_dir: Path) -> None:
    """The job was killed after it had written it. The start says from which iteration it goes on."""
    bring_checkpoints(data_dir, "leia", from_han(30))
    assert name_of(40) in brought(data_dir, "leia")


def test_links_that_a_worker_has_made_are_not_followed(data_dir: Path, tmp_path: Path) -> None:
    folder, secret = data_dir / "checkpoints" / "han", tmp_path / "secret"
    secret.write_text("of another tenant")
    (folder / name_of(50)).symlink_to(secret)
    bring_checkpoints(data_dir, "leia", from_han(40))
    assert name_of(50) not in brought(data_dir, "leia")
    folder.rename(folder.with_name("other"))
    folder.symlink_to(folder.with_name("other"))
    with pytest.raises(CannotPrepare):
        bring_checkpoints(data_dir, "luke", from_han(40))


def test_what_an_executor_has_not_linked_before_it_died_is_linked_next(data_dir: Path) -> None:
    own = data_dir / "checkpoints" / "leia"
    own.mkdir(parents=True)
    os.link(data_dir / "checkpoints" / "han" / name_of(20), own / name_of(20))
    bring_checkpoints(data_dir, "leia", from_han(40))
    assert brought(data_dir, "leia") == {name_of(20), name_of(40), name_of(40, part=0), name_of(40, part=1)}


def test_a_job_that_ended_before_it_had_any_passes_on_those_that_it_had_continued(data_dir: Path) -> None:
    take_folders(data_dir, "han", SECOND)  # which was cancelled before its first worker
    take_folders(data_dir, "han", "3" * 16)
    chain = ContinuedJob(job_id="han", identity=SECOND, iteration=40, earlier=(FIRST,))
    bring_checkpoints(data_dir, "han", chain)
    assert name_of(40) in brought(data_dir, "han")


@pytest.mark.parametrize("is_exact", [True, False])
async def test_later_checkpoints_of_a_job_that_it_had_continued_from_before_are_none_of_it(
    data_dir: Path, is_exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own newest one is shown late, and the first job had trained beyond it."""
    take_folders(data_dir, "han", SECOND)
    folder = data_dir / "checkpoints" / "han"
    folder.mkdir()
    os.link(data_dir / "checkpoints" / f"han.of-{FIRST}" / name_of(20), folder / name_of(20))
    (folder / name_of(30, generation=7)).write_text("of the second job")
    LateStorage(monkeypatch, 20, 20)
    chain = ContinuedJob(job_id="han", identity=SECOND, iteration=30, earlier=(FIRST,), is_exact=is_exact)
    await bring_promised_checkpoints(data_dir, "leia", chain, wait_s=1e9)
    newest = name_of(30, generation=7)
    assert brought(data_dir, "leia") == ({newest} if is_exact else {name_of(20), newest})


def test_a_job_that_never_started_passes_on_no_later_ones_than_it_was_promised(data_dir: Path) -> None:
    take_folders(data_dir, "han", SECOND)
    chain = ContinuedJob(job_id="han", identity=SECOND, iteration=20, earlier=(FIRST,))
    bring_checkpoints(data_dir, "leia", chain)
    assert brought(data_dir, "leia") == {name_of(20)}


@pytest.mark.parametrize(
    "name", [name_of(20), name_of(20, part=3), "model.pt", f"x{name_of(20)}", f"{name_of(20)}.part"]
)
def test_the_executor_knows_the_names_of_the_store(name: str) -> None:
    """It has its own pattern, because the store imports torch."""
    is_one = any(pattern.fullmatch(name) for pattern in (store._NAME, files._NAME))
    assert bool(prepared_folders.CHECKPOINT_NAME.fullmatch(name)) is is_one
