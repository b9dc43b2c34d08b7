"""The results of padding loads on the bus: counted while a load is live, deleted some time after its end."""

import asyncio

from elasticflow.services.monitor.model import ResultsCounted, State
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.run_service import Process
from elasticflow.shared.state.load import LoadPhase

COUNT_EVERY_S = 5.0  # nothing is asked while there is no load
COUNT_SEALED_EVERY_S = 0.5  # while the client of one may wait for its end
DELETE_AGAIN_S = 60.0  # tasks that executors were still adding at the end of a load
KEEP_RESULTS_S = 3_600.0  # of a finished load whose client does not delete them


class LoadResults:
    """Every monitor counts and deletes: both may be repeated, and the policy reports only if it leads."""

    def __init__(self, process: Process, host: Host[State]) -> None:
        self._bus, self._pool, self._clock, self._log = process.bus, process.settings.pool, process.clock, process.log
        self._host = host
        self._delete_at_s: dict[str, tuple[float, ...]] = {}  # by load, also of those that are live

    async def run(self) -> None:
        """Until cancelled."""
        await self._host.ready.wait()
        now_s = self._clock.now_s()  # loads may have ended while no monitor ran
        self._delete_at_s = dict.fromkeys(self._host.folded.loads, (now_s, now_s + KEEP_RESULTS_S))
        while True:
            try:
                await self._count()
                await self._delete()
            except ElasticFlowError as error:
                self._log.warning("results not counted", error=str(error))
            is_ending = any(load.phase is LoadPhase.SEALED for load in self._host.folded.loads.values())
            await asyncio.sleep(COUNT_SEALED_EVERY_S if is_ending else COUNT_EVERY_S)

    async def _count(self) -> None:
        now_s = self._clock.now_s()
        for load_id in self._live():
            self._delete_at_s[load_id] = (now_s, now_s + DELETE_AGAIN_S, now_s + KEEP_RESULTS_S)
            num_results = await self._bus.num_results(self._pool, load_id)
            self._host.note(ResultsCounted(load_id=load_id, num_results=num_results))

    async def _delete(self) -> None:
        """The tasks of loads that have ended; the results at once if the load was cancelled, else at last."""
        loads, now_s = self._host.folded.loads, self._clock.now_s()
        for load_id in sorted(set(self._delete_at_s).difference(self._live())):
            first_s, *later_s = self._delete_at_s[load_id]
            if now_s < first_s:
                continue
            load = loads.get(load_id)
            is_unwanted = load is None or load.phase is LoadPhase.CANCELLED or not later_s
            await self._bus.delete_load(self._pool, load_id, with_results=is_unwanted)
            self._delete_at_s[load_id] = tuple(later_s)
            if not later_s:
                del self._delete_at_s[load_id]

    def _live(self) -> list[str]:
        return sorted(load.load_id for load in self._host.folded.loads.values() if load.live)
