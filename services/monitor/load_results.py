"""The results of padding loads on the bus: counted as they are stored, deleted after the end of their load."""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing

from elasticflow.services.monitor.model import MonitorState, ResultsCounted
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.commands import CancelLoad
from elasticflow.shared.messages.export import LedgerRecord
from elasticflow.shared.messages.load_spec import IndexSet
from elasticflow.shared.runtime.bus.load_lease import LEASE_S, has_load_lease
from elasticflow.shared.runtime.process.clock import fresh_id
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.run_service import Process
from elasticflow.shared.state.load import Load, LoadPhase, load_id_on_bus

NOTE_EVERY_S = 0.2  # each note is a decision of the monitor
RETRY_S = 5.0
DELETE_EVERY_S = 5.0
DELETE_AGAIN_S = 60.0  # tasks that executors were still adding at the end of a load
KEEP_RESULTS_S = 3_600.0  # of a finished load whose client does not delete them


class LoadResults:
    """Every monitor counts and deletes: both may be repeated, and the policy reports only if it leads."""

    def __init__(self, process: Process, host: Host[MonitorState]) -> None:
        self._bus, self._pool, self._clock, self._log = process.bus, process.settings.pool, process.clock, process.log
        self._host = host
        self._counted: dict[str, IndexSet] = {}  # by name on the bus, also of loads that the ledger does not have yet
        self._sequence = 0  # of the last result that is counted
        self._delete_at_s: dict[str, tuple[float, ...]] = {}  # by the same name, also of those that are live

    async def run(self) -> None:
        """Count and delete results until cancelled."""
        await self._host.ready.wait()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._count_all(), name="counting results")
            tasks.create_task(self._delete_all(), name="deleting results")

    # -- counting ----------------------------------------------------------------------------------------

    async def _count_all(self) -> None:
        """Count results, starting from the last ones that the ledger counts."""
        live = self._live()
        self._counted = {load.bus_name: IndexSet(load.counted) for load in live}
        self._sequence = min((load.counted_to for load in live), default=0)
        while True:
            try:
                results = self._bus.result_subjects(self._pool, after_sequence=self._sequence)
                async with aclosing(results) as batches:
                    async for batch in batches:
                        self._count(batch)
                        await asyncio.sleep(NOTE_EVERY_S)
            except ElasticFlowError as error:  # e.g. a pool without this stream
                self._log.warning("results not counted", error=str(error))
                await asyncio.sleep(RETRY_S)

    def _count(self, batch: tuple[LedgerRecord, ...]) -> None:
        touched = set[str]()
        for record in batch:
            if (tasks := subjects.tasks_of_results(record.subject)) is not None:
                name, first, last = tasks
                self._counted.setdefault(name, IndexSet()).add(first, last)
                touched.add(name)
        self._sequence = batch[-1].sequence
        self._note(touched)

    def _note(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            counted, load_id = self._counted[name], load_id_on_bus(name)
            load = self._host.folded.loads.get(load_id)
            if name != (load_id if load is None else load.bus_name):
                continue  # of an earlier load of this id, whose results may still be stored; or not in the ledger yet
            for first, last in load.counted if load is not None else ():
                counted.add(first, last)  # another monitor may have counted what its client has deleted
            note = ResultsCounted(
                load_id=load_id, num_results=len(counted), counted=counted.ranges, counted_to=self._sequence
            )
            self._host.note(note)

    # -- deleting ----------------------------------------------------------------------------------------

    async def _delete_all(self) -> None:
        now_s = self._clock.now_s()  # loads may have ended while no monitor ran
        names = (load.bus_name for load in self._host.folded.loads.values())
        self._delete_at_s = dict.fromkeys(names, (now_s, now_s + KEEP_RESULTS_S))
        while True:
            try:
                await self._delete()
            except ElasticFlowError as error:
                self._log.warning("results not deleted", error=str(error))
            await asyncio.sleep(DELETE_EVERY_S)

    async def _delete(self) -> None:
        """The tasks of loads that have ended; the results at once if the load was cancelled, else at last."""
        loads = {load.bus_name: load for load in self._host.folded.loads.values()}
        live, now_s = {load.bus_name for load in self._live()}, self._clock.now_s()
        self._note(live.intersection(self._counted))  # again: the fold may not have known the load
        self._delete_at_s |= dict.fromkeys(live, (now_s, now_s + DELETE_AGAIN_S, now_s + KEEP_RESULTS_S))
        for name in sorted(set(self._delete_at_s).difference(live)):
            first_s, *later_s = self._delete_at_s[name]
            if now_s < first_s:
                continue
            load = loads.get(name)
            if not later_s and await has_load_lease(self._bus, self._pool, name):
                continue  # its client still reads
            is_unwanted = load is None or load.phase is LoadPhase.CANCELLED or not later_s
            await self._bus.delete_load(self._pool, name, with_results=is_unwanted)
            self._delete_at_s[name] = tuple(later_s)
            if not later_s:
                del self._delete_at_s[name]
                self._counted.pop(name, None)

    def _live(self) -> list[Load]:
        return [load for load in self._host.folded.loads.values() if load.live]


# --- abandoned loads -----------------------------------------------------------------------------------
# Open padding loads whose client is gone: the monitor cancels them, by the command that a client would send.

CHECK_EVERY_S = 30.0
ABANDONED_S = 1.5 * LEASE_S  # without a lease, as this monitor has seen it


class AbandonedLoads:
    """Every monitor may cancel a load, and may do so again: admission cancels it once."""

    def __init__(self, process: Process, host: Host[MonitorState]) -> None:
        self._bus, self._pool, self._clock, self._log = process.bus, process.settings.pool, process.clock, process.log
        self._host = host
        self._missing_since_s: dict[str, float] = {}

    async def run(self) -> None:
        """Check for abandoned loads until cancelled."""
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
            if await self._has_lease(load.bus_name):
                self._missing_since_s.pop(load_id, None)
            elif now_s - self._missing_since_s.setdefault(load_id, now_s) >= ABANDONED_S:
                await self._cancel(load, now_s)
                self._missing_since_s[load_id] = now_s  # again only if admission has not cancelled it until then
        for load_id in set(self._missing_since_s).difference(is_open):
            del self._missing_since_s[load_id]

    async def _has_lease(self, name: str) -> bool:
        try:
            return await has_load_lease(self._bus, self._pool, name)
        except ElasticFlowError:
            self._missing_since_s.clear()  # clients could not renew their leases either
            raise

    async def _cancel(self, load: Load, now_s: float) -> None:
        command = CancelLoad(load_id=load.load_id, tenant=load.tenant, reason="its client is gone")
        message_id = fresh_id()  # tenants share the stream, and must not know it before
        data = codec.encode(command, id=message_id, recorded_at_s=now_s)
        await self._bus.append(subjects.submit(load.tenant, self._pool), data, message_id=message_id)
        self._log.info("LoadAbandoned", load_id=load.load_id)
