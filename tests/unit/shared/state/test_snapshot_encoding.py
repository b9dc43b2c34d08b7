"""Snapshots: which changes of a type give another shape, and that all processes compute the same shape."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgpack
import pytest

from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.gpus import GpuId, GpuLimits
from elasticflow.shared.messages.job_spec import JobSpec, MetricCondition
from elasticflow.shared.messages.pool_config import TenantQuota
from elasticflow.shared.messages.rejection import Offer
from elasticflow.shared.state import snapshot_encoding
from elasticflow.shared.state.job import PreviousGeneration
from elasticflow.shared.state.pool import NodeState, PoolState, SlowGpu
from tests.support.recorded_bytes import contains

RECORDED = Path(__file__).parent / "recorded_snapshots"


@pytest.mark.parametrize(
    "nested",
    [NodeState, SlowGpu, Offer, GpuId, GpuLimits, JobSpec, MetricCondition, TenantQuota, PreviousGeneration],
)
def test_another_field_of_a_nested_type_changes_the_shape(nested: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(nested.__annotations__, "added", int)
    assert snapshot_encoding.shape_of(PoolState) != snapshot_encoding.SHAPE


def test_another_fold_changes_the_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_encoding, "FOLD", snapshot_encoding.FOLD + 1)
    assert snapshot_encoding.shape_of(PoolState) != snapshot_encoding.SHAPE


def test_another_process_computes_the_same_shape() -> None:
    """It once contained the address of a function: no process read the snapshot of another."""
    program = "from elasticflow.shared.state import snapshot_encoding; print(snapshot_encoding.SHAPE)"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == snapshot_encoding.SHAPE


def test_a_snapshot_of_another_shape_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = snapshot_encoding.dump(PoolState(sequence=7))
    assert snapshot_encoding.load(data).sequence == 7
    monkeypatch.setattr(snapshot_encoding, "SHAPE", "another")
    with pytest.raises(Undecodable):
        snapshot_encoding.load(data)


@pytest.mark.parametrize("name", [each.name for each in fields(PoolState) if each.init])
def test_a_snapshot_of_an_epoch_without_a_field_has_its_default(name: str) -> None:
    plain = msgpack.unpackb(snapshot_encoding.dump(PoolState(sequence=7)), strict_map_key=False)
    older: Any = msgpack.packb(
        {key: value for key, value in plain.items() if key != name} | {"shape": "older", "gone": 1}
    )
    read = snapshot_encoding.load(older, of_any_shape=True)
    assert getattr(read, name) == getattr(PoolState() if name == "sequence" else PoolState(sequence=7), name)


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.msgpack")), ids=lambda path: path.stem)
def test_a_recorded_snapshot_of_an_epoch_can_still_be_read(path: Path) -> None:
    """A ledger may consist of nothing else than such a snapshot and what follows it, so each must stay readable."""
    state = snapshot_encoding.load(path.read_bytes(), of_any_shape=True)
    assert set(state.live_jobs) == {"running", "waiting"}
    assert set(state.ended_jobs) == {"done"}
    assert set(state.nodes) == {"node-0", "node-1"}
    assert state.live_jobs["running"].gpus
    assert state.live_jobs["running"].spec is not None
    assert state.curves
    assert state.config.curves
    again = msgpack.unpackb(snapshot_encoding.dump(state), strict_map_key=False)
    then = msgpack.unpackb(path.read_bytes(), strict_map_key=False)
    assert contains(again | {"shape": then["shape"]}, then)


@pytest.mark.parametrize("data", [b"", b"damaged", msgpack.packb([1]), msgpack.packb({"shape": "x", "sequence": "y"})])
def test_damaged_bytes_are_no_snapshot_of_an_epoch(data: bytes) -> None:
    with pytest.raises(Undecodable):
        snapshot_encoding.load(data, of_any_shape=True)
