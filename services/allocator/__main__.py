"""`python -m elasticflow.services.allocator`: the allocator on the bus. Replicas stand by behind a lease."""

from elasticflow.shared.library_imports import without_gc

with without_gc():
    from elasticflow.services.allocator.policy import with_cache
    from elasticflow.shared.runtime.service.run_service import Process, host_policy, run_service
    from elasticflow.shared.scheduling.planning_cache import PlanningCache
    from elasticflow.shared.scheduling.warm_up import warm_up


async def serve(process: Process) -> None:
    """Allocate, until cancelled."""
    await host_policy(process, with_cache(PlanningCache()), leads_by_lease=True, prepare=warm_up)


if __name__ == "__main__":
    run_service("allocator", lambda settings: serve)
