"""Workers that start together read a checkpoint; of a sharded optimizer, each reads what has some of its own part."""

# pyright: reportPrivateImportUsage=false

import io
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from elasticflow.services.executor.worker.checkpoint.files import whole_state
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.services.executor.worker.data.virtual_nodes import VirtualNodes
from elasticflow.services.executor.worker.engine.restored_state import Restored, restored_state
from elasticflow.services.executor.worker.engine.sharded_optimizer import ShardedOptimizer
from elasticflow.services.executor.worker.engine.step_agreement import GenerationMembers
from elasticflow.services.executor.worker.engine.trainer import ShardedCheckpoints
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.transport import Membership
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment, GenerationPlan
from testbed.worker_nodes import job_spec

CPU = torch.device("cpu")
WAIT_S = 30.0
NUM_WRITERS = 4
OVERHEAD = 1.1  # names and settings in a file, beside numbers


class Worker:
    """A model, and an optimizer whose state tells the iteration."""

    def __init__(self) -> None:
        self.model = nn.Sequential(*[nn.Linear(130, 130) for _ in range(8)])
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.sharded = ShardedOptimizer(self.optimizer)
        self.read_bytes = 0

    def train(self, group: Group | None) -> None:
        self.sharded.own(group)
        for number, parameter in enumerate(self.model.parameters()):
            parameter.grad = torch.full_like(parameter, number + 1.0)
        self.optimizer.step()


def together(workers: list[Worker], act: Any) -> list[Any]:
    store, size = dist.HashStore(), len(workers)

    def member(rank: int) -> Any:
        group = (
            Group(Membership(store, rank=rank, size=size, timeout_s=WAIT_S), generation=1, device=CPU)
            if size > 1
            else None
        )
        return act(workers[rank], group)

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(member, range(size)))


def write(folder: Path, iteration: int) -> dict[str, Any]:
    """A checkpoint of NUM_WRITERS workers. Returns the whole state of its optimizer."""
    torch.manual_seed(iteration)

    def act(worker: Worker, group: Group | None) -> dict[str, Any]:
        assert group is not None
        worker.train(group)
        part = worker.sharded.state_dict()
        store = CheckpointStore(folder, generation=1)
        state = {"model": worker.model.state_dict(), "optimizer": part, "iteration": iteration, "metrics": {}}
        ShardedCheckpoints(store, group.rank, group.size, within_s=WAIT_S).save(iteration, state)
        return part

    return whole_state(together([Worker() for _ in range(NUM_WRITERS)], act))


def restore(workers: list[Worker], assignment: Assignment) -> dict[str, Any]:
    """Returns the whole state of the optimizer."""

    def act(worker: Worker, group: Group | None) -> dict[str, Any]:
        worker.sharded.own(group)
        members = GenerationMembers(group, VirtualNodes(count=8, global_batch_size=8))
        state = restored_state(assignment, members, [], worker.sharded).state
        worker.model.load_state_dict(state["model"])
        worker.sharded.load_state_dict(state["optimizer"])
        return worker.sharded.state_dict()

    return whole_state(together(workers, act))


@pytest.fixture
def assignment(tmp_path: Path) -> Assignment:
    return Assignment(
        job_id="job",
        plan=GenerationPlan(generation=2, world_size=1),
        rank=0,
        spec=job_spec("Points"),
        checkpoint_dir=str(tmp_path),
    )


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, str]]:
    """From the disk, by thread and file name."""
    counts = Counter[tuple[int, str]]()

    class Counted(io.FileIO):
        def readinto(self, buffer: Any, /) -> int:
            num_bytes = super().readinto(buffer) or 0
            counts[threading.get_ident(), Path(str(self.name)).name] += num_bytes
            return num_bytes

    def open_counted(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        if mode == "rb":
            return io.BufferedReader(Counted(path))
        return io.open(path, mode, *more, **named)  # noqa: UP020

    monkeypatch.setattr(Path, "open", open_counted)
    return counts


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["param_groups"] == expected["param_groups"]
    for number, values in expected["state"].items():
        for name, value in values.items():
            assert torch.equal(found["state"][number][name], value), (number, name)


@pytest.mark.parametrize(("num_readers", "most_parts"), [(1, 4), (2, 2), (3, 2), (4, 1), (8, 1), (7, 2)])
def test_each_worker_reads_the_parts_that_its_own_overlaps(
    assignment: Assignment, read_bytes: Counter[tuple[int, str]], tmp_path: Path, num_readers: int, most_parts: int
) -> None:
    expected = write(tmp_path, 3)
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("*.part")}
    read_bytes.clear()
    assert_same(restore([Worker() for _ in range(num_readers)], assignment), expected)
    by_worker = Counter[int]()
    for (thread, name), num_bytes in read_bytes.items():
        by_worker[thread] += num_bytes if name in sizes else 0
    assert len(sizes) == NUM_WRITERS
    twice = 2 * max(sizes.values()) * OVERHEAD  # for the hash, then for the numbers
    assert max(by_worker.values()) <= most_parts * twice
    assert sum(by_worker.values()) <= (NUM_WRITERS + num_readers) * twice


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("spoil", [damage, Path.unlink])
@pytest.mark.parametrize("part", range(NUM_WRITERS))
def test_all_take_an_older_checkpoint_if_one_of_them_lacks_a_part(
    assignment: Assignment, tmp_path: Path, part: int, spoil: Any
) -> None:
    expected = write(tmp_path, 3)
    older = {path.name for path in tmp_path.iterdir()}
    write(tmp_path, 4)
    (newest,) = [path for path in tmp_path.glob(f"*-p{part:05d}-*.part") if path.name not in older]
    spoil(newest)
    assert_same(restore([Worker(), Worker()], assignment), expected)


def test_a_job_whose_only_checkpoint_is_damaged_fails(assignment: Assignment, tmp_path: Path) -> None:
    write(tmp_path, 3)
    damage(next(tmp_path.glob("*.part")))
    known = replace(assignment, checkpoint_iteration=3, checkpoint_wait_s=0.0)
    with pytest.raises(TrainingFailed, match=r"is readable: g0000000001-i00000000000003-\w+\.ckpt: a part of it"):
        restore([Worker()], known)


def alone(assignment: Assignment) -> Restored:
    members = GenerationMembers(None, VirtualNodes(count=8, global_batch_size=8))
    return restored_state(replace(assignment, checkpoint_wait_s=0.0), members, [], None)


def save(folder: Path, *iterations: int, owner: str = "") -> list[Path]:
    store = CheckpointStore(folder, generation=1, owner=owner)
    return [store.save(each, {"iteration": each, "metrics": {}, "model": {}}).file for each in iterations]


@pytest.mark.parametrize("spoil", [damage, lambda file: file.write_bytes(b""), Path.unlink])
def test_an_older_checkpoint_replaces_one_that_the_ledger_knows_and_the_loss_is_named(
    assignment: Assignment, tmp_path: Path, spoil: Any
) -> None:
    _, newest = save(tmp_path, 3, 7)
    spoil(newest)
    restored = alone(replace(assignment, checkpoint_iteration=7))
    assert restored.state["iteration"] == 3
    named = "the checkpoint of iteration 7 is not in" if spoil is Path.unlink else newest.name
    assert named in restored.lost_checkpoints


def test_a_damaged_file_is_not_awaited(assignment: Assignment, tmp_path: Path) -> None:
    _, newest = save(tmp_path, 3, 7)
    damage(newest)
    members = GenerationMembers(None, VirtualNodes(count=8, global_batch_size=8))
    known = replace(assignment, checkpoint_iteration=7, checkpoint_wait_s=1e9)
    assert restored_state(known, members, [], None).state["iteration"] == 3


def test_the_newest_checkpoint_is_no_loss(assignment: Assignment, tmp_path: Path) -> None:
    save(tmp_path, 3, 7)
    assert alone(replace(assignment, checkpoint_iteration=7)).lost_checkpoints == ""
    assert alone(replace(assignment, checkpoint_iteration=6)).lost_checkpoints == ""


def test_a_damaged_file_that_the_ledger_does_not_know_is_named_too(assignment: Assignment, tmp_path: Path) -> None:
    (only,) = save(tmp_path, 3)
    damage(only)
    restored = alone(assignment)
    assert restored.state["iteration"] == 0
    assert only.name in restored.lost_checkpoints


def test_without_any_readable_checkpoint_the_job_fails_with_what_to_do(assignment: Assignment, tmp_path: Path) -> None:
    known = replace(assignment, checkpoint_iteration=7)
    with pytest.raises(
        TrainingFailed, match=r"not in .*, and no older one: set EF_DATA_DIR to the same shared storage"
    ):
        alone(known)
    for file in save(tmp_path, 3, 7):
        damage(file)
    with pytest.raises(TrainingFailed, match="restore the folder from a backup"):
        alone(known)


def test_the_checkpoints_of_another_job_are_not_read(assignment: Assignment, tmp_path: Path) -> None:
    save(tmp_path, 3, 7, owner="other")
    with pytest.raises(TrainingFailed, match="job other wrote it"):
        alone(replace(assignment, checkpoint_iteration=7, job_identity="job"))


def test_without_a_checkpoint_all_begin_at_the_beginning(assignment: Assignment) -> None:
    def act(worker: Worker, group: Group | None) -> Any:
        members = GenerationMembers(group, VirtualNodes(count=8, global_batch_size=8))
        return restored_state(assignment, members, [], worker.sharded).state

    assert together([Worker(), Worker()], act) == [{"iteration": 0, "metrics": {}}] * 2
