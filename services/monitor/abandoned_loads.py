"""Open padding loads whose client is gone: the monitor cancels them, by the command that a client would send."""

import asyncio

from elasticflow.services.monitor.model import State
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.commands import CancelLoad
from elasticflow.shared.messages.envelope import codec
from elasticflow.shared.runtime.bus.load_lease import LEASE_S, has_load_lease
from elasticflow.shared.runtime.process.clock import fresh_id
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.run_service import Process
from elasticflow.shared.state.load import Load, LoadPhase

CHECK_EVERY_S = 30.0
ABANDONED_S = 1.5 * LEASE_S  # without a lease, as this monitor has seen it


class AbandonedLoads:
    """Every monitor may cancel a load, and may do so again: admission cancels it once."""

    def __init__(self, process: Process, host: Host[State]) -> None:
        self._bus, self._pool, self._clock, self._log = process.bus, process.settings.pool, process.clock, process.log
        self._host = host
        self._missing_since_s: dict[str, float] = {}

    async def run(self) -> None:
        """Until cancelled."""
        await self._host.ready.wait()
        while True:
            try:
                await self.check()
            except ElasticFlowError as error:
                self._log.warning("leases of loads not read", error=str(error))
            await asyncio.sleep(CHECK_EVERY_S)

    async def check(self) -> None:
        """Cancel the open loads without a lease for ABANDONED_S. Raises ElasticFlowError."""
        loads, now_s = self._host.folded.loads, self._clock.now_s()
        is_open = {load.load_id: load for load in loads.values() if load.phase is LoadPhase.OPEN}
        for load_id, load in sorted(is_open.items()):
            if await self._has_lease(load_id):
                self._missing_since_s.pop(load_id, None)
            elif now_s - self._missing_since_s.setdefault(load_id, now_s) >= ABANDONED_S:
                await self._cancel(load, now_s)
                self._missing_since_s[load_id] = now_s  # again only if admission has not cancelled it until then
        for load_id in set(self._missing_since_s).difference(is_open):
            del self._missing_since_s[load_id]

    async def _has_lease(self, load_id: str) -> bool:
        try:
            return await has_load_lease(self._bus, self._pool, load_id)
        except ElasticFlowError:
            self._missing_since_s.clear()  # clients could not renew their leases either
            raise

    async def _cancel(self, load: Load, now_s: float) -> None:
        command = CancelLoad(load_id=load.load_id, tenant=load.tenant, reason="its client is gone")
        message_id = fresh_id()  # tenants share the stream, and must not know it before
        data = codec.encode(command, id=message_id, recorded_at_s=now_s)
        await self._bus.append(subjects.submit(load.tenant, self._pool), data, message_id=message_id)
        self._log.info("LoadAbandoned", load_id=load.load_id)
