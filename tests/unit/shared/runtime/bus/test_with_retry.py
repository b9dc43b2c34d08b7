"""Repeats of a call while a cluster elects a leader."""

from collections.abc import Callable
from typing import Any

import pytest

from elasticflow.shared.errors import BadCredentials, ElasticFlowError, MaybeStored, NotFound, Unavailable
from elasticflow.shared.runtime.bus import contract as with_retry_module
from elasticflow.shared.runtime.bus.contract import with_retry

URL = "nats://127.0.0.1:4222"


def no_leader() -> Unavailable:
    return Unavailable(URL, "no reply on $JS.API within 5 s")


def failing(*failures: ElasticFlowError) -> Callable[..., Any]:
    """A call that fails with each of these in turn, then returns "done"."""
    left = list(failures)

    async def call() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return call


async def test_unavailable_and_maybe_stored_are_retried() -> None:
    assert await with_retry(failing(no_leader(), MaybeStored("subject", "id"))) == "done"


async def test_retries_end_at_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(with_retry_module, "RETRY_TIMEOUT_S", 0.0)
    with pytest.raises(Unavailable):
        await with_retry(failing(no_leader()))


@pytest.mark.parametrize("error", [BadCredentials(URL), NotFound("bucket", "name")], ids=["permanent", "not-there"])
async def test_another_error_is_not_retried(error: ElasticFlowError) -> None:
    with pytest.raises(type(error)):
        await with_retry(failing(error))
