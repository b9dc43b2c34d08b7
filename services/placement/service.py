"""Placement on the bus: it needs nothing but the ledger. Replicas stand by behind a lease."""

from services.placement.policy import POLICY
from shared.runtime.service import Process, host_policy


async def serve(process: Process) -> None:
    """Place, until cancelled."""
    await host_policy(process, POLICY, leads_by_lease=True)
