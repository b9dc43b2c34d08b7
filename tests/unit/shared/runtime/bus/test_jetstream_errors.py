"""What errors of JetStream's API mean: what to try again, and what not."""

import json
from typing import Any

import pytest

from elasticflow.shared.errors import BusRejected, ElasticFlowError, MaybeStored, Retry, StorageFull, Unavailable
from elasticflow.shared.runtime.bus.nats.jetstream_api import failure, publish_acked

NO_SPACE = "no suitable peers for placement, insufficient storage"


@pytest.mark.parametrize(
    ("number", "reason", "meaning"),
    [
        (10005, "no suitable peers for placement, peer offline", Unavailable),
        (10005, NO_SPACE, StorageFull),
        (10012, "error creating store for consumer", Unavailable),
        (10012, "rename /d/obs/admission/o.dat.tmp /d/obs/admission/o.dat: no such file or directory", Unavailable),
        (10012, "deliver policy can not be updated", BusRejected),
        (10047, "insufficient storage resources available", StorageFull),
        (10025, "bad request", BusRejected),
    ],
)
def test_an_error_is_tried_again_if_that_can_help(number: int, reason: str, meaning: type[ElasticFlowError]) -> None:
    found = failure({"err_code": number, "code": 400, "description": reason}, "ef.submit.lab.p", "nats://h")
    assert type(found) is meaning
    assert isinstance(found, Retry) == (meaning is not BusRejected)


class Cluster:
    """In which the first attempt at a message is still on its way."""

    url = "nats://h"

    async def request(self, *_: Any, **__: Any) -> Any:
        error = {"code": 409, "err_code": 10158, "description": "duplicate message id is in process"}
        return type("Answer", (), {"data": json.dumps({"error": error}).encode()})


async def test_a_message_whose_first_attempt_is_in_process_may_be_stored() -> None:
    connection: Any = Cluster()
    with pytest.raises(MaybeStored):
        await publish_acked(connection, "ef.submit.lab.p", b"", {"Nats-Msg-Id": "one"}, timeout_s=1.0)
