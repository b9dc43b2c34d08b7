"""A state that a gang has divided: taken apart, stored by position, and made whole again."""

from pathlib import Path
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.services.executor.worker.checkpoint.files import SHARDS
from elasticflow.services.executor.worker.checkpoint.shards import (
    shard,
    whole,
    with_shards,
    with_tensors,
    without_shards,
)
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.services.executor.worker.engine.trainer import GangCheckpoints


def whole_state(rows: int) -> dict[str, Any]:
    return {
        "model": {"weight": torch.arange(3.0 * rows).view(rows, 3), "bias": torch.arange(float(rows))},
        "optimizer": {"state": {0: {"step": torch.tensor(4.0), "exp_avg": torch.ones(rows, 3)}}, "param_groups": []},
        "names": ["a", ("b", 2)],
        "iteration": 7,
    }


def at_position(position: int, size: int, rows: int) -> dict[str, Any]:
    """The state of one worker: FSDP2 gives the first ones as many rows as they can have."""

    def cut(tensor: torch.Tensor) -> dict[str, Any]:
        parts = tensor.chunk(size)
        return shard(parts[position] if position < len(parts) else tensor[:0], tensor.shape)

    state = whole_state(rows)
    state["model"] = {name: cut(tensor) for name, tensor in state["model"].items()}
    of_first = state["optimizer"]["state"][0]
    of_first["exp_avg"] = cut(of_first["exp_avg"])
    return state


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.shape == other.shape
    return one == other


@given(st.integers(1, 4), st.integers(1, 9))
def test_the_shards_of_all_positions_make_the_whole_state(size: int, rows: int) -> None:
    divided = [without_shards(at_position(position, size, rows)) for position in range(size)]
    commons, shards = [common for common, _ in divided], [each for _, each in divided]
    assert all(same(common, commons[0]) for common in commons), "all workers have the rest in common"
    assert same(whole(commons[0], shards), whole_state(rows))


@given(st.integers(1, 4), st.integers(1, 9))
def test_each_worker_gets_its_own_shards_back(size: int, rows: int) -> None:
    for position in range(size):
        mine = at_position(position, size, rows)
        back = with_shards(*without_shards(mine))
        assert same(back, mine)
        shapes = with_tensors(back, lambda _, shape: tuple(shape))
        assert shapes["model"] == {"weight": (rows, 3), "bias": (rows,)}


def test_a_checkpoint_counts_once_all_shards_are_there(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, generation=1)
    second = GangCheckpoints(store, 1, 2, within_s=5.0)
    first = GangCheckpoints(store, 0, 2, within_s=5.0)
    assert second.save(7, at_position(1, 2, 5)) is None
    assert store.newest() is None
    assert first.save(7, at_position(0, 2, 5)) is not None
    assert same(store.newest(), whole_state(5)), "any reader gets the whole state"
    assert same(first.whole_model(7, at_position(0, 2, 5)), whole_state(5)["model"])
    (part, _) = sorted(tmp_path.glob("*.part"))
    part.write_bytes(b"damaged")
    assert store.newest() is None
    read = store.newest(complete=lambda found: found)
    assert read is not None
    assert len(read[SHARDS]) == 2
