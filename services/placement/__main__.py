"""`python -m elasticflow.services.placement`: placement on the bus. One replica leads by lease, the others stand by."""

from elasticflow.shared.library_imports import without_gc

with without_gc():
    from elasticflow.services.placement.policy import with_cache
    from elasticflow.shared.runtime.service.run_service import Process, host_policy, run_service
    from elasticflow.shared.scheduling.planning_cache import PlanningCache


async def serve(process: Process) -> None:
    """Place, until cancelled."""
    await host_policy(process, with_cache(PlanningCache()), leads_by_lease=True)


if __name__ == "__main__":
    run_service("placement", lambda settings: serve)
