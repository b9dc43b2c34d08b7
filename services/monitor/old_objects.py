"""Deletes what is old in the pool's buckets: code that no job needs any more, snapshots of versions that no longer run,
and what jobs have produced (docs/adr/0062, 0065)."""

import asyncio
from collections.abc import Callable

from elasticflow.services.monitor.model import State
from elasticflow.services.monitor.webhook import TOLD
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.run_service import Process
from elasticflow.shared.state.code_in_use import code_digests

SWEEP_EVERY_S = 3_600.0


class OldObjects:
    """Every monitor may do this: what is deleted twice is gone once."""

    def __init__(self, process: Process, host: Host[State]) -> None:
        self._bus, self._pool, self._log, self._host = process.bus, process.settings.pool, process.log, host

    async def run(self) -> None:
        """Until cancelled. Only once the ledger is folded, it is known which jobs are live."""
        await self._host.ready.wait()
        while True:
            try:
                await self.sweep()
            except ElasticFlowError as error:
                self._log.warning("old objects not deleted", error=str(error))
            await asyncio.sleep(SWEEP_EVERY_S)

    async def sweep(self) -> None:
        """Delete what is old now, by the clock of NATS. Raises ElasticFlowError."""
        config, now_s = self._host.folded.config, (await self._bus.ledger_end(self._pool)).at_s
        num_deleted = 0
        if (kept_s := config.code_kept_s) is not None:
            num_deleted += await self._delete(streams.code_bucket(self._pool), now_s - kept_s, self._is_code_in_use)
            snapshots = streams.snapshot_bucket(self._pool)
            epoch = await snapshot_store.newest_epoch(self._bus, self._pool)
            saved = await snapshot_store.newest_saved(self._bus, self._pool)
            of_epoch = () if epoch is None else (snapshot_store.epoch_object(epoch.began.snapshot),)
            newest = () if saved is None else (snapshot_store.saved_object(saved.snapshot),)
            needed = {TOLD, *newest, *of_epoch}
            num_deleted += await self._delete(snapshots, now_s - kept_s, needed.__contains__)
        if (kept_s := config.artifacts_kept_s) is not None:
            num_deleted += await self._delete(streams.artifact_bucket(self._pool), now_s - kept_s, lambda _: False)
        if num_deleted:
            self._log.info("ObjectsDeleted", num_objects=num_deleted)

    async def _delete(self, bucket: str, before_s: float, is_needed: Callable[[str], bool]) -> int:
        return await self._bus.delete_old_objects(bucket, before_s=before_s, is_needed=is_needed)

    def _is_code_in_use(self, name: str) -> bool:
        return any(name == streams.code_name(*used) for used in code_digests(self._host.folded))
