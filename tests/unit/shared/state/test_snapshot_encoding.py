"""Snapshots: which changes of a type give another shape, and that all processes compute the same shape."""

import subprocess
import sys
from typing import Any

import pytest

from elasticflow.shared.messages.envelope.codec import Undecodable
from elasticflow.shared.messages.gpu_limits import GpuLimits
from elasticflow.shared.messages.job_spec import JobSpec, MetricCondition
from elasticflow.shared.messages.pool_config import TenantQuota
from elasticflow.shared.messages.rejection import Offer
from elasticflow.shared.messages.share_schedule import GpuId
from elasticflow.shared.state import snapshot_encoding
from elasticflow.shared.state.job import PreviousGeneration
from elasticflow.shared.state.pool import NodeState, PoolState, SlowGpu


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
