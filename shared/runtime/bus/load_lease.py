"""The lease of an open padding load: its client renews it, and the monitor cancels a load without one.

A client that was killed would leave its load open for ever. Once a load is sealed, it needs no client.
"""

import contextlib

from elasticflow.shared.errors import WrongExpectedSequence
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.bus.streams import state_bucket

LEASE_S = 120
RENEW_EVERY_S = 30.0


async def take_load_lease(bus: Bus, pool: str, load_id: str, client_id: str) -> bool:
    """False if another client has it. A repeat has no effect. Raises MaybeStored, Unavailable, StorageFull."""
    with contextlib.suppress(WrongExpectedSequence):
        await bus.put_value(state_bucket(pool), _key(load_id), client_id.encode(), expected_revision=0, ttl_s=LEASE_S)
        return True
    held = await bus.get_value(state_bucket(pool), _key(load_id))
    return held is not None and held.data == client_id.encode()


async def renew_load_lease(bus: Bus, pool: str, load_id: str, client_id: str) -> None:
    """Raises MaybeStored, Unavailable, StorageFull."""
    await bus.put_value(state_bucket(pool), _key(load_id), client_id.encode(), ttl_s=LEASE_S)


async def has_load_lease(bus: Bus, pool: str, load_id: str) -> bool:
    """Raises Unavailable."""
    return await bus.get_value(state_bucket(pool), _key(load_id)) is not None


def _key(load_id: str) -> str:
    return f"load-{load_id}"
