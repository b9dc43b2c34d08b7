"""Schedules on the wire: flat, and validated by the codec."""

import msgpack
import pytest

from elasticflow.shared.messages import codec
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.share_schedule import ShareSegment, segments
from testbed.histories import NOW_S


def planned(schedule: object) -> bytes:
    payload = {"num_gpus_by_job": {}, "valid_until_s": None, "planned": {"a": schedule}, "at_s": NOW_S}
    return msgpack.packb({"type": "AllocationDecided", "version": 1, "payload": payload})


def test_a_schedule_is_read_segment_by_segment() -> None:
    assert list(segments(())) == []
    steps = list(segments((0.0, 40.0, 1.0, 50.0, 120.0, 4.0)))
    assert steps == [ShareSegment(0.0, 40.0, 1), ShareSegment(50.0, 120.0, 4)]


@pytest.mark.parametrize("bad", [[0.0], [0.0, 1.0, 2, 3.0], [0.0, -1.0, 2], [0.0, float("nan"), 1], ["a"] * 3])
def test_what_is_no_schedule_is_refused_at_the_door(bad: list[object]) -> None:
    with pytest.raises(Undecodable, match="planned"):
        codec.decode(planned(bad))
