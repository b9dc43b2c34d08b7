"""Posts a notice to the webhook when a job ends, is at risk, or its promise is broken; from the leading monitor only.

A notice may come twice: after a change of the leader, or if its answer was lost. Its id is then the same. How far the
notices are told is kept in the bucket of snapshots, for the next leader.
"""

# pyright: strict

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal
from urllib.parse import urlsplit

from elasticflow.services.monitor.model import MonitorState
from elasticflow.shared.errors import ElasticFlowError, NotFound
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.service.host import Host
from elasticflow.shared.runtime.service.run_service import Process
from elasticflow.shared.state import finish_time
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState
from elasticflow.shared.state.promise import Promise, promise_of

# --- notices -------------------------------------------------------------------------------------------
# What the webhook tells of a job: that it ended, is at risk, or that its promise is broken. Pure.

Happened = Literal["finished", "failed", "cancelled", "at risk", "promise broken"]

_ENDS: Mapping[Phase, Happened] = {
    Phase.FINISHED: "finished",
    Phase.FAILED: "failed",
    Phase.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One thing that happened to a job. id: the same whenever it is told again.

    margin_s: from the end, or the expected end, to the deadline; negative if late; None if either is unknown.
    """

    id: str
    job_id: str
    tenant: str
    what: Happened
    text: str
    deadline_s: float | None
    margin_s: float | None
    at_s: float


def notices(state: PoolState, *, after_s: float, now_s: float) -> tuple[Notice, ...]:
    """What happened after after_s, up to now_s, in the order of time."""
    jobs = (*state.live_jobs.values(), *state.ended_jobs.values())
    found = [notice for job in jobs for notice in _of_a_job(job, now_s) if after_s < notice.at_s <= now_s]
    return tuple(sorted(found, key=lambda notice: (notice.at_s, notice.id)))


def _of_a_job(job: Job, now_s: float) -> Iterator[Notice]:
    if job.at_risk and job.at_risk_since_s is not None:
        yield _notice(job, "at risk", job.at_risk_since_s, now_s)
    if promise_of(job, now_s) is Promise.BROKEN and job.deadline_s is not None:
        yield _notice(job, "promise broken", job.deadline_s, now_s)
    if job.phase in _ENDS and job.ended_at_s is not None and not job.profile_only:
        yield _notice(job, _ENDS[job.phase], job.ended_at_s, now_s)


def _notice(job: Job, what: Happened, at_s: float, now_s: float) -> Notice:
    margin_s = finish_time.margin_s(job, now_s)
    return Notice(
        id=f"{job.job_id}/{what}/{at_s:.3f}",
        job_id=job.job_id,
        tenant=job.tenant,
        what=what,
        text=_text(job, what, margin_s),
        deadline_s=job.deadline_s,
        margin_s=margin_s,
        at_s=at_s,
    )


def _text(job: Job, what: Happened, margin_s: float | None) -> str:
    """The text of a notice, as "j1 finished, 20 s before its deadline"."""
    if what == "promise broken":
        return f"{job.job_id} had not finished at its deadline"
    side = ""
    if margin_s is not None:
        side = f"{abs(margin_s):.0f} s {'before' if margin_s >= 0 else 'after'} its deadline"
    if what == "at risk":
        but = ", but no plan with the pool's margin keeps it" if (margin_s or 0.0) >= 0 else ""
        would = f": at its speed now it would finish {side}{but}" if side else ""
        return f"{job.job_id} is at risk of missing its deadline{would}"
    reason = f": {job.explanation}" if job.explanation else ""
    return f"{job.job_id} {what}{f', {side}' if side and what == 'finished' else ''}{reason}"


# --- webhook -------------------------------------------------------------------------------------------

TOLD = "webhook"  # object with the time up to which notices are told
MAX_TOLD_BYTES = 1_000
OVERLAP_S = 60.0  # an event may reach the ledger so long after its time
POLL_S = 1.0
POST_TIMEOUT_S = 10.0
ATTEMPTS = 8  # of one notice, within about two minutes; then it is dropped
MAX_BACKOFF_S = 30.0
_FIRST_BACKOFF_S = 1.0


class Webhook:
    """Tells the notices in order, one at a time, in a task of its own: a receiver that is slow delays only this."""

    def __init__(self, process: Process, host: Host[MonitorState], url: str, *, poll_s: float = POLL_S) -> None:
        self._bus, self._pool, self._clock = process.bus, process.settings.pool, process.clock
        self._log, self._host, self._url, self._poll_s = process.log, host, url, poll_s
        self._told_to_s: float | None = None  # None: another monitor leads
        self._told: dict[str, float] = {}  # ids within OVERLAP_S, with their times

    async def run(self) -> None:
        """Post new notices until cancelled."""
        await self._host.ready.wait()
        self._log.info("webhook", host=urlsplit(self._url).hostname)  # the path may be a secret
        while True:
            try:
                await self.tell()
            except ElasticFlowError as error:
                self._log.warning("webhook waits", error=str(error))
            await asyncio.sleep(self._poll_s)

    async def tell(self) -> None:
        """Post each notice that is not told yet. Raises ElasticFlowError if NATS does not keep how far that is."""
        if not self._host.leads:
            self._told_to_s, self._told = None, {}
            return
        now_s = self._clock.now_s()
        if self._told_to_s is None:
            self._told_to_s = await self._kept() or now_s
            await self._keep(self._told_to_s)
        due = notices(self._host.folded, after_s=self._told_to_s - OVERLAP_S, now_s=now_s)
        new = [notice for notice in due if notice.id not in self._told]
        for notice in new:
            if not await self._post_repeatedly(notice):
                return  # another monitor leads
            self._told[notice.id] = notice.at_s
        self._told_to_s = now_s
        self._told = {id: at_s for id, at_s in self._told.items() if at_s > now_s - OVERLAP_S}
        if new:
            await self._keep(now_s)

    async def _post_repeatedly(self, notice: Notice) -> bool:
        """False if this monitor leads no longer. A notice that no attempt delivers is dropped, and logged."""
        backoff_s, problem = _FIRST_BACKOFF_S, ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
            if not self._host.leads:
                return False
            problem = await self._post(notice)
            if not problem:
                self._log.info("NoticePosted", job_id=notice.job_id, what=notice.what)
                return True
        self._log.warning("NoticeDropped", job_id=notice.job_id, what=notice.what, attempts=ATTEMPTS, problem=problem)
        return True

    async def _post(self, notice: Notice) -> str:
        """What went wrong, without the URL; "" if the receiver took it."""
        body = json.dumps({"pool": self._pool, **asdict(notice)}).encode()
        try:
            async with asyncio.timeout(POST_TIMEOUT_S):
                status = await post(self._url, body)
        except TimeoutError:
            return "no answer in time"
        except (OSError, ValueError, EOFError, asyncio.LimitOverrunError) as error:
            return type(error).__name__
        return "" if 200 <= status < 300 else f"status {status}"

    async def _kept(self) -> float | None:
        bucket = streams.snapshot_bucket(self._pool)
        try:
            return float(await self._bus.get_object(bucket, TOLD, max_bytes=MAX_TOLD_BYTES))
        except (NotFound, ValueError):
            return None

    async def _keep(self, told_to_s: float) -> None:
        await self._bus.put_object(streams.snapshot_bucket(self._pool), TOLD, repr(told_to_s).encode())


async def post(url: str, body: bytes) -> int:
    """POST a JSON document; the status of the answer. Follows no redirect. Raises OSError, EOFError, ValueError,
    LimitOverrunError."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=is_tls or None)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        head = (
            f"POST {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        version, status, *_ = (await reader.readuntil(b"\n")).split()
        if not version.startswith(b"HTTP/"):
            raise ValueError("not an answer of HTTP")
        return int(status)
    finally:
        writer.close()
