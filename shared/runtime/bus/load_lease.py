"""The lease of a padding load: the client that opened it renews it until it has all results, or has sent all tasks.

A client that was killed would leave its load open forever: the monitor cancels an open load without a lease. The
results of a load with a lease are its client's.
"""

import contextlib

from elasticflow.shared.errors import WrongExpectedSequence
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.bus.streams import state_bucket

LEASE_S = 120
_RELEASED_S = 1  # the shortest that a server keeps a value
_RELEASED = b""
RENEW_EVERY_S = 30.0


async def take_load_lease(bus: Bus, pool: str, load: str, client_id: str) -> bool:
    """False if another client has it. A repeat has no effect. Raises MaybeStored, Unavailable, StorageFull."""
    with contextlib.suppress(WrongExpectedSequence):
        await bus.put_value(state_bucket(pool), _key(load), client_id.encode(), expected_revision=0, ttl_s=LEASE_S)
        return True
    held = await bus.get_value(state_bucket(pool), _key(load))
    return held is not None and held.data == client_id.encode()


async def renew_load_lease(bus: Bus, pool: str, load: str, client_id: str) -> None:
    """Raises MaybeStored, Unavailable, StorageFull."""
    await bus.put_value(state_bucket(pool), _key(load), client_id.encode(), ttl_s=LEASE_S)


async def release_load_lease(bus: Bus, pool: str, load: str) -> None:
    """Raises MaybeStored, Unavailable, StorageFull."""
    await bus.put_value(state_bucket(pool), _key(load), _RELEASED, ttl_s=_RELEASED_S)


async def has_load_lease(bus: Bus, pool: str, load: str) -> bool:
    """Raises Unavailable."""
    held = await bus.get_value(state_bucket(pool), _key(load))
    return held is not None and held.data != _RELEASED


def _key(load: str) -> str:
    return f"load-{load}"
