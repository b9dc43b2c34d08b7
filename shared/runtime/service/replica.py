"""One replica of a service: its host, and the lease by which one of several replicas decides while the others stand by.

`run_service` starts it as a process on NATS; the simulator starts it on the in-memory bus and on virtual time.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

from elasticflow.shared.runtime.bus.contract import until_available
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.leader_lease import Lease
from elasticflow.shared.runtime.service.service_context import ServiceContext
from elasticflow.shared.state.policy import Policy, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica(Generic[State]):
    """lease: None where every replica decides."""

    host: Host[State]
    lease: Lease | None

    async def run(self, beside: Callable[[Host[State]], Coroutine[Any, Any, None]] | None = None) -> None:
        """Decide until cancelled. beside: what else the service does, next to its host."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.host.run(), name="host")
            if self.lease is not None:
                tasks.create_task(self.lease.hold(lambda held: self.host.wake()), name="lease")
            if beside is not None:
                tasks.create_task(beside(self.host), name="beside")


async def open_replica(
    context: ServiceContext,
    policy: Policy[State],
    *,
    leads_by_lease: bool = False,
    act: Callable[[Any], None] | None = None,
    make_host: Callable[..., Host[State]] = Host,
) -> Replica[State]:
    """A replica that knows the newest snapshot; it reads and decides once it runs.

    leads_by_lease: the lease only saves work; compare-and-set keeps two leaders from harm.
    """
    load = partial(snapshot_store.load, context.bus, context.pool, context.log)
    snapshot = await until_available(load, context.log, "snapshot")
    lease: Lease | None = None

    def leads() -> bool:
        return lease is None or lease.held

    host = make_host(context, policy, act=act, leads=leads, snapshot=snapshot)
    if leads_by_lease:

        def ttl_s() -> int:
            return host.folded.config.timeouts.leader_lease_s

        lease = Lease(context, policy.service, ttl_s=ttl_s, is_candidate=lambda: host.is_fit)
    return Replica(host=host, lease=lease)
