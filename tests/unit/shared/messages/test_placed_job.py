"""A placement names the virtual nodes of all its GPUs, or of none."""

from typing import Any

import msgpack
import pytest

from elasticflow.shared.messages import codec
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.events import PlacedJob, PlacementDecided, PlanDecided
from testbed.histories import NOW_S, gpus


def encoded(**changes: Any) -> bytes:
    """A decision on one job on two GPUs, with changes to the placement's fields on the wire."""
    placed = PlacedJob(job_id="a", generation=1, gpus=gpus("node-0:0", "node-0:1"), virtual_nodes_by_rank=(6, 2))
    decided = PlacementDecided(placements=(placed,), at_s=NOW_S)
    plan = PlanDecided(service="placement", based_on=0, now_s=NOW_S, events=(decided,))
    envelope = msgpack.unpackb(codec.encode(plan, id="one", recorded_at_s=NOW_S), strict_map_key=False)
    (placement,) = envelope["payload"]["events"][0]["payload"]["placements"]
    placement.update(changes)
    for name in [name for name, value in changes.items() if value is None]:
        del placement[name]
    return msgpack.packb(envelope)


def decoded(data: bytes) -> tuple[int, ...]:
    message = codec.decode(data).message
    assert isinstance(message, PlanDecided)
    (decided,) = message.events
    assert isinstance(decided, PlacementDecided)
    return decided.placements[0].virtual_nodes_by_rank


def test_the_counts_travel() -> None:
    assert decoded(encoded()) == (6, 2)
    assert decoded(encoded(virtual_nodes_by_rank=[0, 8])) == (0, 8)


def test_an_older_message_has_none() -> None:
    assert decoded(encoded(virtual_nodes_by_rank=None)) == ()


@pytest.mark.parametrize(
    ("counts", "problem"),
    [
        ([8], "or one number for each of its gpus"),
        ([4, 2, 2], "or one number for each of its gpus"),
        ([0, 0], "a virtual node on at least one of its gpus"),
        ([9, -1], "greater than or equal to 0"),
    ],
)
def test_counts_that_do_not_fit_the_gpus_are_rejected(counts: list[int], problem: str) -> None:
    with pytest.raises(Undecodable, match=problem):
        codec.decode(encoded(virtual_nodes_by_rank=counts))
