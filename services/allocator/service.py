"""The allocator on the bus: it needs nothing but the ledger. Replicas stand by behind a lease."""

from services.allocator.policy import POLICY
from shared.runtime.service import Process, host_policy
from shared.scheduling.warm_up import warm_up


async def serve(process: Process) -> None:
    """Allocate, until cancelled."""
    await host_policy(process, POLICY, leads_by_lease=True, prepare=warm_up)
