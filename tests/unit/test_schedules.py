"""Schedules on the wire: flat, checked at the door, and read from the maps that they once were."""

from pathlib import Path

import msgpack
import pytest

from shared.messages import codec
from shared.messages.cluster import ShareSegment, segments
from shared.messages.codec import Undecodable
from shared.messages.events import AllocationDecided, JobAdmitted
from tests.histories import NOW_S

RECORDED = Path(__file__).parent / "recorded_messages"
SEGMENT = (1_800_000_000.5, 1_800_000_060.5, 2.0)


def planned(schedule: object) -> bytes:
    payload = {"num_gpus_by_job": {}, "valid_until_s": None, "planned": {"a": schedule}, "at_s": NOW_S}
    return msgpack.packb({"type": "AllocationDecided", "version": 2, "payload": payload})


def test_a_schedule_is_read_segment_by_segment() -> None:
    assert list(segments(())) == []
    steps = list(segments((0.0, 40.0, 1.0, 50.0, 120.0, 4.0)))
    assert steps == [ShareSegment(0.0, 40.0, 1), ShareSegment(50.0, 120.0, 4)]


@pytest.mark.parametrize(
    "bad", [[0.0], [0.0, 1.0, 2, 3.0], [0.0, -1.0, 2], [0.0, float("nan"), 1], ["a"] * 3]
)
def test_what_is_no_schedule_is_refused_at_the_door(bad: list[object]) -> None:
    with pytest.raises(Undecodable, match="planned"):
        codec.decode(planned(bad))


def test_schedules_of_maps_are_read_as_flat_ones() -> None:
    admitted = codec.decode((RECORDED / "JobAdmitted-1.msgpack").read_bytes()).message
    assert isinstance(admitted, JobAdmitted)
    assert (admitted.minimum_satisfactory_share, admitted.replanned) == (SEGMENT, {"job-0": SEGMENT})
    allocated = codec.decode((RECORDED / "AllocationDecided-1.msgpack").read_bytes()).message
    assert isinstance(allocated, AllocationDecided)
    assert allocated.planned == {"job-1": SEGMENT}


def test_an_old_message_without_its_schedule_is_refused() -> None:
    envelope = msgpack.unpackb((RECORDED / "JobAdmitted-1.msgpack").read_bytes())
    del envelope["payload"]["minimum_satisfactory_share"]
    with pytest.raises(Undecodable, match="JobAdmitted of version 1"):
        codec.decode(msgpack.packb(envelope))
