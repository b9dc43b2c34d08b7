"""Placement on the bus: it reads only the ledger. One replica leads by lease, the others stand by."""

from elasticflow.services.placement.policy import with_cache
from elasticflow.shared.runtime.service.run_service import Process, host_policy
from elasticflow.shared.scheduling.planning_cache import PlanningCache


async def serve(process: Process) -> None:
    """Place, until cancelled."""
    await host_policy(process, with_cache(PlanningCache()), leads_by_lease=True)
