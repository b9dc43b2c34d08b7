"""What a job's workers have written, from the bus: no storage is shared with the nodes (docs/adr/0066)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

from elasticflow.client.worker_logs import last_state
from elasticflow.shared.errors import UnknownStream
from elasticflow.shared.messages.envelope.codec import Undecodable
from elasticflow.shared.messages.log_chunk import NEWEST, NUM_SLOTS, LogChunk, decode_chunk, decode_number, slot
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.contract import Bus
from elasticflow.shared.runtime.bus.with_retry import with_retry
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.pool import PoolState

_AT_ONCE = 32  # nodes that are asked for the job


@dataclass(slots=True)
class _Place:
    """Where the reader is in the chunks of one node. length: of the text that is read of this chunk."""

    number: int
    newest: int
    length: int = 0
    complete: bool = False


class StoredLogs:
    """Of one job; each call continues where the last one stopped. rank: None for all workers."""

    def __init__(self, bus: Bus, pool: str, job: Job, rank: int | None) -> None:
        self._bus, self._bucket = bus, streams.log_bucket(pool)
        self._job, self._rank = job, rank
        self._places: dict[str, _Place] = {}
        self._node_ids: set[str] = set()  # that have run the job since the first call
        self._has_asked_all = self._has_asked_at_end = False  # all nodes of the pool

    @property
    def silent(self) -> bool:
        """Whether no node has published a line so far."""
        return not self._places

    @property
    def complete(self) -> bool:
        """Whether the job has ended, and its nodes publish no other lines."""
        if not self._places:
            return not self._job.live and self._job.generation == 0
        return all(place.complete for place in self._places.values())

    async def new_lines(self, state: PoolState) -> AsyncIterator[str]:
        """By node: "g2-r0 | epoch 3 ...". state: of the pool now. Raises NotPermitted, Unavailable."""
        self._job = state.job(self._job.job_id) or self._job
        self._node_ids |= {*self._job.nodes}
        node_ids = set(self._node_ids)
        if not self._has_asked_all or (not self._job.live and not self._has_asked_at_end):
            node_ids.update(state.nodes)
        self._has_asked_all, self._has_asked_at_end = True, not self._job.live
        await self._find(sorted(node_ids - self._places.keys()))
        for node_id, place in self._places.items():
            async for text in self._new_texts(node_id, place):
                for line in text.split("\n")[:-1]:
                    worker, of_a_worker, said = line.partition(" | ")
                    if self._rank is None or not of_a_worker or worker.endswith(f"-r{self._rank}"):
                        yield f"{worker}{of_a_worker}{last_state(said)}"

    async def _find(self, node_ids: list[str]) -> None:
        for start in range(0, len(node_ids), _AT_ONCE):
            some = node_ids[start : start + _AT_ONCE]
            found = await asyncio.gather(*(self._newest(node_id) for node_id in some))
            for node_id, newest in zip(some, found, strict=True):
                if newest is not None:
                    self._places[node_id] = _Place(number=_oldest(newest), newest=newest)

    async def _new_texts(self, node_id: str, place: _Place) -> AsyncIterator[str]:
        """The newest chunk grows; once there is a next one, it does not."""
        while True:
            following = await self._chunk(node_id, place.number + 1)
            chunk = await self._chunk(node_id, place.number)
            if chunk is not None and chunk.number > place.number:
                yield f"eflow: lines of {node_id} left out: the job has written others in their place since\n"
                place.newest = max(await self._newest(node_id) or 0, chunk.number)
                place.number, place.length = _oldest(place.newest), 0
                continue
            if chunk is not None and chunk.number == place.number:
                yield chunk.text[place.length :]
                place.length, place.complete = len(chunk.text), chunk.complete
            if place.number >= place.newest and (following is None or following.number <= place.number):
                return
            place.number, place.length = place.number + 1, 0

    async def _newest(self, node_id: str) -> int | None:
        """The number of the node's newest chunk; None if it has published no line of the job."""
        data = await self._read(node_id, NEWEST)
        with suppress(Undecodable):
            return None if data is None else decode_number(data)
        return None

    async def _chunk(self, node_id: str, number: int) -> LogChunk | None:
        """What is in its slot."""
        data = await self._read(node_id, slot(number))
        with suppress(Undecodable):
            return None if data is None else decode_chunk(data)
        return None

    async def _read(self, node_id: str, name: str) -> bytes | None:
        key = streams.log_key(self._job.tenant, node_id, self._job.job_id, name)
        try:
            value = await with_retry(self._bus.get_value, self._bucket, key)
        except UnknownStream:  # of a pool that an older version made
            return None
        return None if value is None else value.data


def _oldest(newest: int) -> int:
    """The number of the oldest chunk in the ring with this newest one."""
    return max(newest - NUM_SLOTS + 1, 0)
